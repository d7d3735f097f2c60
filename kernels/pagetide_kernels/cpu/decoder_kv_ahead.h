// The KV that products fetch for the attention after them.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "decoder.h"
#include "later_reads.h"

namespace pagetide {

// Of each layer what earlier steps wrote and attention reads, as far as it will still be there.
class KvAhead {
 public:
  KvAhead(const DecoderShape& shape, const DecoderStep& step, const std::vector<DecoderLayer>& layers,
          int64_t element_size);

  // From now on products fetch for this layer's attention; after the last for none. Nobody is at a product.
  void turn_to(size_t layer);

  LaterReads& reads() { return reads_; }

 private:
  const DecoderStep& step_;
  const std::vector<DecoderLayer>& layers_;
  int64_t block_bytes_;
  std::map<int, std::vector<int32_t>> blocks_;  // of each window
  LaterReads reads_;
};

}  // namespace pagetide
