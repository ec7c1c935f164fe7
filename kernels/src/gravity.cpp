#include "gravity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace sge {
namespace {

// Sums of independent lanes, which the compiler may keep in a register; their order is the same whatever that holds.
constexpr int kLanes = 16;

float dot(const float* a, const float* b, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i + j < n; ++j) lanes[j] += a[i + j] * b[i + j];
  double sum = 0;
  for (float lane : lanes) sum += static_cast<double>(lane);
  return static_cast<float>(sum);
}

// In double: the squares of what is small or large in float are no floats.
double length(const float* a, int n) {
  double lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(a[i + j]);
  }
  for (int j = 0; i + j < n; ++j) lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(a[i + j]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return std::sqrt(sum);
}

float cosine(float x) { return std::min(1.0f, std::max(-1.0f, x)); }

// Unit vector of hidden - mean, or zeros; whether that is finite.
bool unit(const float* hidden, const float* mean, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = hidden[i] - mean[i];
  const double norm = length(to, n);
  const bool finite = std::isfinite(norm);
  if (!finite || norm == 0) {
    std::fill(to, to + n, 0.0f);
    return finite;
  }
  for (int i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<double>(to[i]) / norm);
  return true;
}

float attraction(const float* u, const float* ring, int n, const Narratives& of, float* cosines) {
  for (int w = 0; w < of.window; ++w) cosines[w] = cosine(dot(u, ring + static_cast<int64_t>(w) * n, n));
  std::partial_sort(cosines, cosines + of.top_k, cosines + of.window, std::greater<>());
  double sum = 0;
  for (int k = 0; k < of.top_k; ++k) sum += static_cast<double>(cosines[k]);
  return static_cast<float>(sum / of.top_k);
}

float distance(const float* u, const float* centre, int n) {
  const double norm = length(centre, n);
  return norm == 0 ? 1.0f : 1.0f - cosine(static_cast<float>(static_cast<double>(dot(u, centre, n)) / norm));
}

}  // namespace

void gravity(const float* hidden, const float* mean, const int64_t* places, int rows, int n, const Narratives& of, float* scores) {
  std::vector<float> u(static_cast<size_t>(n)), cosines(static_cast<size_t>(of.window));
  for (int r = 0; r < rows; ++r) {
    const int64_t place = places[r], seen = of.seen[place];
    float* ring = of.ring + place * of.window * n;
    float* centre = of.centre + place * n;
    const bool finite = unit(hidden + static_cast<int64_t>(r) * n, mean, n, u.data());
    scores[r] = !finite ? NAN : seen < of.window ? 0.0f : attraction(u.data(), ring, n, of, cosines.data());
    scores[rows + r] = !finite || seen == 0 ? NAN : distance(u.data(), centre, n);
    std::copy(u.begin(), u.end(), ring + seen % of.window * n);
    const float kept = seen == 0 ? 0.0f : of.decay, taken = 1.0f - kept;
    for (int i = 0; i < n; ++i) centre[i] = (seen == 0 ? 0.0f : kept * centre[i]) + taken * u[static_cast<size_t>(i)];
    of.seen[place] = seen + 1;
  }
}

}  // namespace sge
