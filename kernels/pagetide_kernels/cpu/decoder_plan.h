// What a step tells its layers' attention.
#pragma once

#include "attention.h"
#include "decoder.h"

namespace pagetide {

// What is wrong with the places and lengths that a step names; null: nothing. Blocks that lie before the
// widest `window` of the layers (0: all of them see everything) are not read and may be anything.
const char* step_problem(const DecoderShape& shape, const DecoderStep& step, int window);

// The arguments of a layer's attention.
AttentionCall attention_call(const DecoderShape& shape, const DecoderStep& step, const DecoderLayer& layer);

}  // namespace pagetide
