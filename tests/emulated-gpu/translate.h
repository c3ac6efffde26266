// From CUDA C++ to what a host compiler takes: only what macros of device/cuda.h cannot do.
#pragma once
#include <set>
#include <string>

namespace emu {

struct Translation {
  std::string text;              // as many lines as before
  std::set<std::string> names;   // functions of device/ptx.h that its PTX needs
};

// Inline PTX becomes calls, one an instruction; variables in shared memory become references into the block's; behind
// each kernel comes its entry in the module's table. `kernels` is false for headers that are read alone.
Translation translate(const std::string& source);

}  // namespace emu
