// Compares the linear kernels with a naive loop.
#pragma once

// Random layers of both element types. Returns the number of rows compared; exits at the first wrong one.
int check_linear();
