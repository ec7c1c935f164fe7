// Packed weights and the products with them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "bindings.h"
#include "bindings_checks.h"
#include "team.h"
#include "weight.h"

namespace bindings {
namespace {

std::shared_ptr<sge::Weight> pack(const Matrix& matrix, const std::string& format, bool integer) {
  require(matrix.shape(0) > 0 && matrix.shape(1) > 0, "the matrix must not be empty");
  require_memory(matrix);
  Unlocked unlocked;
  return std::make_shared<sge::Weight>(matrix.data(), as_int(matrix.shape(0), "n"), as_int(matrix.shape(1), "k"), format,
                                       integer);
}

void rows(const sge::Weight& w, const Indices& ids, const MatrixOut& out) {
  require(out.shape(0) == ids.shape(0) && out.shape(1) == static_cast<size_t>(w.k), "out must be [ids, k]");
  require_memory(out);
  const std::vector<int64_t> wanted = in_range(ids, w.n, "ids");
  const int count = as_int(wanted.size(), "ids");
  Unlocked unlocked;
  sge::team()->run(count, [&](int i) {
    w.row(static_cast<int>(wanted[static_cast<size_t>(i)]), out.data() + static_cast<size_t>(i) * w.k);
  });
}

void linear(const Matrix& x, const sge::Weight& w, const MatrixOut& out, const std::optional<Vector>& bias, bool add) {
  require(x.shape(1) == static_cast<size_t>(w.k), "x must be [rows, k] with the k of the weight");
  require(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(w.n), "out must be [rows, n]");
  require(!bias || bias->shape(0) == static_cast<size_t>(w.n), "bias must be [n]");
  require_memory(x, out);
  require_apart(x, out);
  if (bias) require_memory(*bias);
  const int count = as_int(x.shape(0), "rows");
  Unlocked unlocked;
  sge::linear(x.data(), w.k, count, w, bias ? bias->data() : nullptr, add, out.data(), w.n);
}

void lm_head(const Matrix& x, const sge::Weight& w, const std::optional<MatrixOut>& logits,
             const std::optional<MatrixOut>& statistics, const std::optional<Indices>& targets,
             const std::optional<Array<float, nb::ndim<1>>>& target_logits) {
  const size_t count = x.shape(0);
  require(x.shape(1) == static_cast<size_t>(w.k), "x must be [rows, k] with the k of the weight");
  require(!logits || (logits->shape(0) == count && logits->shape(1) == static_cast<size_t>(w.n)), "logits must be [rows, n]");
  require(!statistics || (statistics->shape(0) == count && statistics->shape(1) == sge::kStatistics),
          "statistics must be [rows, 4]");
  require(targets.has_value() == target_logits.has_value(), "targets and target_logits come together");
  require(!targets || (targets->shape(0) == count && target_logits->shape(0) == count), "targets must be [rows]");
  require_memory(x);
  if (logits) require_memory(*logits);
  if (statistics) require_memory(*statistics);
  if (target_logits) require_memory(*target_logits);
  const std::vector<int64_t> wanted = targets ? in_range(*targets, w.n, "targets") : std::vector<int64_t>();
  const int r = as_int(count, "rows");
  Unlocked unlocked;
  sge::lm_head(x.data(), r, w, logits ? logits->data() : nullptr, statistics ? statistics->data() : nullptr,
               targets ? wanted.data() : nullptr, target_logits ? target_logits->data() : nullptr);
}

}  // namespace

void add_weights(nb::module_& m) {
  nb::class_<sge::Weight>(m, "Weight")
      .def_ro("n", &sge::Weight::n)
      .def_ro("k", &sge::Weight::k)
      .def_ro("integer", &sge::Weight::integer)
      .def_ro("exact", &sge::Weight::exact)
      .def_prop_ro("format", [](const sge::Weight& w) { return std::string(sge::name_of(w.format)); })
      .def_prop_ro("bytes", &sge::Weight::bytes)
      .def("rows", &rows, "ids"_a.noconvert(), "out"_a.noconvert());
  m.def("pack", &pack, "matrix"_a.noconvert(), "format"_a, "integer"_a = false);
  m.def("linear", &linear, "x"_a.noconvert(), "weight"_a, "out"_a.noconvert(), "bias"_a.noconvert() = nb::none(),
        "add"_a = false);
  m.def("lm_head", &lm_head, "x"_a.noconvert(), "weight"_a, "logits"_a.noconvert() = nb::none(),
        "statistics"_a.noconvert() = nb::none(), "targets"_a.noconvert() = nb::none(),
        "target_logits"_a.noconvert() = nb::none());
}

}  // namespace bindings
