// The Python module: its threads, and the parts that bindings.h names. The checks are in bindings_checks.h.
#include "bindings.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bindings_checks.h"
#include "kernels.h"
#include "team.h"

NB_MODULE(_native, m) {
  m.doc() = "Kernels of the portable CPU platform; see src/ of the kernels and sgl_entropic_kernels for the contracts.";
  sge::kernels();  // an unknown instruction set is said here, not from within a thread
  m.def("isa", [] { return std::string(sge::kernels().name); });
  m.def("set_threads", [](int threads) {
    bindings::require(threads >= 1 && threads <= 1024, "threads must be between 1 and 1024");
    bindings::Unlocked unlocked;
    sge::set_threads(threads);
  }, nanobind::arg("threads"));
  m.def("threads", [] { return sge::team()->threads(); });
  m.def("regions", [] { return sge::team()->regions(); });
  m.def("sleeps", [] { return sge::team()->sleeps(); });

  bindings::add_weights(m);
  bindings::add_ops(m);
  bindings::add_decoder(m);
  bindings::add_sampling(m);
  bindings::add_gravity(m);
}
