// Random numbers of both element types, and what the checks do when a kernel reports an error.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "elements.h"

using pagetide::bfloat16;

inline float number(float x) { return x; }

inline float number(bfloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline void assign(float& out, float x) { out = x; }

inline void assign(bfloat16& out, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  out.bits = static_cast<uint16_t>(bits >> 16);
}

inline std::mt19937 random_bits(7);

inline int random_int(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random_bits);
}

inline float random_unit() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(random_bits); }

template <class Element>
void fill(std::vector<Element>& elements, size_t size) {
  elements.resize(size);
  for (Element& element : elements) assign(element, random_unit());
}

inline void require(const char* problem) {
  if (problem == nullptr) return;
  std::puts(problem);
  std::exit(1);
}
