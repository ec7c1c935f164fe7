// Hidden states against those of their requests' last tokens.
#include "gravity.h"

#include "bindings.h"
#include "bindings_checks.h"

namespace bindings {
namespace {

void gravity(const Matrix& hidden, const Vector& mean, const Indices& places, const CubeOut& ring, const MatrixOut& centre,
             const Array<int64_t, nb::ndim<1>>& seen, int top_k, float decay, const MatrixOut& scores) {
  const size_t rows = hidden.shape(0), n = hidden.shape(1), count = ring.shape(0), window = ring.shape(1);
  require(n > 0, "hidden must have at least one column");
  require(mean.shape(0) == n, "mean must be [n]");
  require(places.shape(0) == rows, "places must be [rows]");
  require(window > 0 && ring.shape(2) == n, "ring must be [places, window, n]");
  require(centre.shape(0) == count && centre.shape(1) == n, "centre must be [places, n]");
  require(seen.shape(0) == count, "seen must be [places]");
  require(scores.shape(0) == 2 && scores.shape(1) == rows, "scores must be [2, rows]");
  require(top_k >= 1 && static_cast<size_t>(top_k) <= window, "top_k must be between 1 and the window");
  require(decay >= 0 && decay <= 1, "decay must be between 0 and 1");
  require_memory(hidden, mean, ring, centre, seen, scores);
  require_apart(hidden, ring);
  require_apart(hidden, centre);
  require_apart(hidden, scores);
  require_apart(ring, centre);
  require_apart(ring, scores);
  require_apart(centre, scores);
  const std::vector<int64_t> at = in_range(places, static_cast<int64_t>(count), "places");
  for (int64_t place : at) require(seen.data()[place] >= 0, "seen must not be negative");
  const int r = as_int(rows, "rows"), columns = as_int(n, "columns"), states = as_int(window, "the window");
  Unlocked unlocked;
  sge::gravity(hidden.data(), mean.data(), at.data(), r, columns,
               {ring.data(), centre.data(), seen.data(), states, top_k, decay}, scores.data());
}

}  // namespace

void add_gravity(nb::module_& m) {
  m.def("gravity", &gravity, "hidden"_a.noconvert(), "mean"_a.noconvert(), "places"_a.noconvert(), "ring"_a.noconvert(),
        "centre"_a.noconvert(), "seen"_a.noconvert(), "top_k"_a, "decay"_a, "scores"_a.noconvert());
}

}  // namespace bindings
