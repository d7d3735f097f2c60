// The angles by which RoPE (Su et al. 2021, arXiv:2104.09864) turns a step's tokens: found once for all layers.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "decoder.h"
#include "decoder_memory.h"

namespace pagetide {

class Angles {
 public:
  explicit Angles(std::vector<DecoderRope> ropes) : ropes_(std::move(ropes)), turns_(ropes_.size()) {}

  void reserve(int num_tokens) {
    for (size_t i = 0; i < ropes_.size(); ++i) {
      turns_[i].reserve(sizeof(float) * static_cast<size_t>(num_tokens) * static_cast<size_t>(ropes_[i].rotary_dim));
    }
  }

  // Those of some tokens.
  void find(const int64_t* positions, Range tokens) const {
    for (size_t i = 0; i < ropes_.size(); ++i) {
      for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        find(ropes_[i], static_cast<float>(positions[token]), turns_[i].get<float>() + token * ropes_[i].rotary_dim);
      }
    }
  }

  DecoderTurns of(int rope) const {
    const auto i = static_cast<size_t>(rope);
    return {turns_[i].get<float>(), ropes_[i].rotary_dim};
  }

 private:
  static void find(const DecoderRope& rope, float position, float* cos_and_sin) {
    const int half = rope.rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      const float angle = position * rope.frequencies[i];
      cos_and_sin[i] = std::cos(angle) * rope.amplitude;
      cos_and_sin[half + i] = std::sin(angle) * rope.amplitude;
    }
  }

  std::vector<DecoderRope> ropes_;
  std::vector<Buffer> turns_;  // [T][cos, sin][rotary_dim / 2] each
};

}  // namespace pagetide
