// Checks what products take of the KV that attention reads after them.
#pragma once

// Random blocks, taken by two threads; exits at the first line that nobody or more than one gets.
void check_later_reads();
