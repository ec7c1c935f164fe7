// How close a step's hidden states are to those of their requests' last tokens. Arguments are checked in bindings_gravity.cpp.
#pragma once

#include <cstdint>

namespace sge {

// State of all requests: row p belongs to the request whose place is p.
struct Narratives {
  float* ring;    // [places, window, n]: unit vectors of the last states
  float* centre;  // [places, n]: moving mean of unit vectors
  int64_t* seen;  // [places]: states since the request began
  int window, top_k;
  float decay;  // share of the centre that is kept at every state
};

// hidden [rows, n], mean [n], places [rows] below the number of places; scores [2, rows]: gravity and energy.
// Gravity: mean of the top_k largest cosines between hidden - mean and the ring; 0 until it is full. Energy: 1 - cosine with
// the centre; NaN for a request's first state. Cosines with a zero vector are 0. A state that is not finite scores NaN and
// counts as a zero vector. Then the states are taken in, in the order of the rows.
void gravity(const float* hidden, const float* mean, const int64_t* places, int rows, int n, const Narratives& of, float* scores);

}  // namespace sge
