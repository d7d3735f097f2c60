#include "draw_checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "random.h"

extern "C" const char* draw_f32(int64_t* tokens, const float* logits, const float* temperature, const int32_t* top_k,
                                const float* top_p, const float* min_p, const double* uniform, int64_t stride,
                                int num_rows, int vocab_size);

namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

std::vector<float> random_logits(int size) {
  const float spread = std::pow(10.0f, float(random_int(-2, 5)));
  const int banned_of_ten = random_int(0, 2) == 0 ? random_int(0, 10) : 0;
  std::vector<float> logits;
  for (int i = 0; i < size; ++i) {
    logits.push_back(random_int(1, 10) <= banned_of_ten ? kBanned : std::round(random_unit() * 20.0f) * spread);
  }
  return logits;
}

// 0 for one in three, which is no filter or an end of the draw.
double random_share() { return random_int(0, 2) == 0 ? 0.0 : (double(random_unit()) + 1.0) / 2.0; }

}  // namespace

void check_draw() {
  const int size = random_int(1, 400);
  const std::vector<float> logits = random_logits(size);
  const float temperature = std::pow(10.0f, float(random_int(-5, 4)));
  const float top_p = 1.0f - float(random_share()) * 0.999f, min_p = float(random_share());
  const int32_t top_k = random_int(0, 1) * random_int(0, size + 2);
  const double uniform = std::min(random_share(), std::nextafter(1.0, 0.0));
  int64_t token = -1;
  require(draw_f32(&token, logits.data(), &temperature, &top_k, &top_p, &min_p, &uniform, size, 1, size));
  const bool has_chance = std::any_of(logits.begin(), logits.end(), [](float logit) { return logit > kBanned; });
  const bool is_right = token >= 0 && token < size && (!has_chance || logits[size_t(token)] > kBanned);
  if (is_right) return;
  std::printf("draw: token %lld of %d\n", static_cast<long long>(token), size);
  std::exit(1);
}
