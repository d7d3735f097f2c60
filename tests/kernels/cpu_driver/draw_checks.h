// Checks the drawing of tokens.
#pragma once

// Random rows, some without a chance for some or all tokens; exits at a token that is none, or was banned.
void check_draw();
