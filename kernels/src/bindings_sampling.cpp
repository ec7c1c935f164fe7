// Drawing tokens, and temperatures of a wanted entropy.
#include "sampling.h"

#include <nanobind/stl/optional.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "bindings_checks.h"

namespace bindings {
namespace {

template <class T>
using Row = Array<const T, nb::ndim<1>>;

template <class T, class Accept>
void check_rows(const Row<T>& values, size_t rows, const char* what, const char* accepted, const Accept& accept) {
  require(values.shape(0) == rows, std::string(what) + " must be [rows]");
  require_memory(values);
  for (size_t r = 0; r < rows; ++r) {
    if (accept(values.data()[r])) continue;
    throw std::invalid_argument(std::string(what) + "[" + std::to_string(r) + "] is " + std::to_string(values.data()[r]) +
                                "; accepted: " + accepted);
  }
}

void check_logits(const Matrix& logits) {
  require(logits.shape(1) > 0, "logits must have at least one column");
  require_memory(logits);
}

void check_controls(const Matrix& controls) {
  const size_t rows = controls.shape(1);
  const auto at = [&](sge::Control which, size_t r) { return controls.data()[static_cast<size_t>(which) * rows + r]; };
  for (size_t r = 0; r < rows; ++r) {
    const float mode = at(sge::kMode, r);
    require(mode == sge::kNotSteered || mode == sge::kFixed || mode == sge::kNewton || mode == sge::kExactly,
            "controls[2] must be -1, 0, 1 or 2");
    require(std::isfinite(at(sge::kGain, r)), "controls[1] must be finite");
    require(std::isfinite(at(sge::kLow, r)) && std::isfinite(at(sge::kHigh, r)) && at(sge::kLow, r) <= at(sge::kHigh, r),
            "controls[3] and controls[4] must be finite and in order");
  }
}

void draw(const Matrix& logits, const Row<float>& temperatures, const Row<int32_t>& top_ks, const Row<float>& top_ps,
          const Row<float>& min_ps, const Row<double>& uniforms, const Array<int32_t, nb::ndim<1>>& tokens,
          const std::optional<MatrixOut>& readings, const std::optional<Matrix>& own, const std::optional<Matrix>& controls,
          const std::optional<Indices>& places, const std::optional<MatrixOut>& state,
          const std::optional<MatrixOut>& steered, const std::optional<Matrix>& before) {
  check_logits(logits);
  const size_t rows = logits.shape(0);
  check_rows(temperatures, rows, "temperatures", "above 0", [](float t) { return t > 0; });
  check_rows(top_ks, rows, "top_ks", "at least 1", [](int32_t k) { return k >= 1; });
  check_rows(top_ps, rows, "top_ps", "0 to 1", [](float p) { return p >= 0 && p <= 1; });
  check_rows(min_ps, rows, "min_ps", "0 to 1", [](float p) { return p >= 0 && p <= 1; });
  check_rows(uniforms, rows, "uniforms", "at least 0 and below 1", [](double u) { return u >= 0 && u < 1; });
  require(tokens.shape(0) == rows, "tokens must be [rows]");
  require_memory(tokens);
  if (readings) {
    require(readings->shape(0) == sge::kReadings && readings->shape(1) == rows,
            "readings must be [" + std::to_string(sge::kReadings) + ", rows]");
    require_memory(*readings);
    require_apart(logits, *readings);
  }
  for (const auto& [statistics, name] : {std::pair{&own, "own"}, std::pair{&before, "before"}}) {
    if (!*statistics) continue;
    require((*statistics)->shape(0) == rows && (*statistics)->shape(1) == sge::kStatistics, std::string(name) + " must be [rows, 4]");
    require_memory(**statistics);
  }
  std::vector<int64_t> at;
  sge::Steering steering{};
  if (controls) {
    require(readings && places && state && steered, "controls, places, state, steered and readings come together");
    require(controls->shape(0) == sge::kControls && controls->shape(1) == rows,
            "controls must be [" + std::to_string(sge::kControls) + ", rows]");
    require(state->shape(0) == 2, "state must be [2, places]");
    require(steered->shape(0) == sge::kSteered && steered->shape(1) == rows,
            "steered must be [" + std::to_string(sge::kSteered) + ", rows]");
    require(places->shape(0) == rows, "places must be [rows]");
    require_memory(*controls, *state, *steered);
    require_apart(logits, *steered);
    require_apart(logits, *state);
    at = in_range(*places, static_cast<int64_t>(state->shape(1)), "places");
    check_controls(*controls);
    steering = {controls->data(), at.data(), state->data(), static_cast<int64_t>(state->shape(1)), steered->data()};
  }
  const int count = as_int(rows, "rows"), n = as_int(logits.shape(1), "columns");
  Unlocked unlocked;
  sge::draw(logits.data(), count, n,
            {temperatures.data(), top_ks.data(), top_ps.data(), min_ps.data(), uniforms.data()},
            own ? own->data() : nullptr, before ? before->data() : nullptr, controls ? &steering : nullptr, tokens.data(),
            readings ? readings->data() : nullptr);
}

void solve_temperature(const Matrix& logits, const Row<float>& targets, const Row<float>& starts,
                       const Row<float>& lowest, const Row<float>& highest, const MatrixOut& results) {
  check_logits(logits);
  const size_t rows = logits.shape(0);
  const auto finite = [](float x) { return std::isfinite(x); };
  check_rows(targets, rows, "targets", "finite", finite);
  check_rows(starts, rows, "starts", "finite", finite);
  check_rows(lowest, rows, "lowest", "finite", finite);
  check_rows(highest, rows, "highest", "finite", finite);
  for (size_t r = 0; r < rows; ++r) require(lowest.data()[r] <= highest.data()[r], "lowest must not be above highest");
  require(results.shape(0) == 3 && results.shape(1) == rows, "results must be [3, rows]");
  require_memory(results);
  require_apart(logits, results);
  const int count = as_int(rows, "rows"), n = as_int(logits.shape(1), "columns");
  Unlocked unlocked;
  sge::solve_temperature(logits.data(), count, n, targets.data(), starts.data(), lowest.data(), highest.data(), results.data());
}

}  // namespace

void add_sampling(nb::module_& m) {
  m.def("draw", &draw, "logits"_a.noconvert(), "temperatures"_a.noconvert(), "top_ks"_a.noconvert(),
        "top_ps"_a.noconvert(), "min_ps"_a.noconvert(), "uniforms"_a.noconvert(), "tokens"_a.noconvert(),
        "readings"_a.noconvert() = nb::none(), "own"_a.noconvert() = nb::none(),
        "controls"_a.noconvert() = nb::none(), "places"_a.noconvert() = nb::none(), "state"_a.noconvert() = nb::none(),
        "steered"_a.noconvert() = nb::none(), "before"_a.noconvert() = nb::none());
  m.def("solve_temperature", &solve_temperature, "logits"_a.noconvert(), "targets"_a.noconvert(),
        "starts"_a.noconvert(), "lowest"_a.noconvert(), "highest"_a.noconvert(), "results"_a.noconvert());
}

}  // namespace bindings
