// The parts of the Python module, one function a file; each adds its functions and classes.
#pragma once

#include <nanobind/nanobind.h>

namespace bindings {

void add_weights(nanobind::module_& m);
void add_ops(nanobind::module_& m);
void add_decoder(nanobind::module_& m);
void add_sampling(nanobind::module_& m);
void add_gravity(nanobind::module_& m);

}  // namespace bindings
