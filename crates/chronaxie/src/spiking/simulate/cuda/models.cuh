// The models' twins and their numbers, which are those of `Twin` in models/mod.rs.
#pragma once
#include "adex.cuh"
#include "hodgkin_huxley.cuh"
#include "izhikevich.cuh"
#include "lif_alpha.cuh"
#include "lif_cond.cuh"
#include "lif_delta.cuh"
#include "lif_exp.cuh"

enum Model { kLifExpOne, kLifExp, kLifDelta, kLifAlpha, kLifCond, kIzhikevich, kPoisson, kReplay, kAdEx, kHodgkinHuxley };
