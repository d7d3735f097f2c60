// Compares steps through whole decoders with the same tokens cut into other steps.
#pragma once

// Random decoders of both element types. Returns the number of rows compared; exits at the first that has other
// bits in a batch than alone.
int check_decoder();
