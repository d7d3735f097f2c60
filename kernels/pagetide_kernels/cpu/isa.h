// Which instruction set the kernels run with: the best this CPU has, unless another is forced.
#pragma once

namespace pagetide {

enum class Isa : int { plain = 0, avx2 = 1, avx512 = 2 };

Isa current_isa();

}  // namespace pagetide
