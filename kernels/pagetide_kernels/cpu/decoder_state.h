// A decoder: what it is made of, and the memory that its steps share.
#pragma once

#include <algorithm>
#include <vector>

#include "decoder.h"
#include "decoder_angles.h"
#include "decoder_crews.h"
#include "decoder_memory.h"

namespace pagetide {

struct Decoder {
  DecoderShape shape;
  std::vector<DecoderLayer> layers;
  DecoderNorm norm;  // after the last layer
  Angles angles;
  Rows rows = {};
  Crews crews = {};
  std::vector<ThreadMemory> threads = {};

  int widest_window() const {
    int widest = 0;
    for (const DecoderLayer& layer : layers) {
      if (layer.window == 0) return 0;
      widest = std::max(widest, layer.window);
    }
    return widest;
  }
};

}  // namespace pagetide
