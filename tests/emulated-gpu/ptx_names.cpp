// emulated-ptx FILE ...: prints a source that names every function of device/ptx.h which the inline PTX of these files needs.
// Compiled with device/cuda.h it is an error for each instruction that has no body, whether or not a test runs it.
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>

#include "translate.h"

int main(int count, char** files) {
  std::set<std::string> names;
  for (int i = 1; i < count; i++) {
    std::ifstream f(files[i]);
    std::stringstream text;
    text << f.rdbuf();
    try {
      for (auto& n : emu::translate(text.str()).names) names.insert(n);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", files[i], e.what());
      return 1;
    }
  }
  for (auto& n : names) std::printf("using emu_ptx::%s;\n", n.c_str());
  std::fprintf(stderr, "%zu instructions of inline PTX in %d files\n", names.size(), count - 1);
  return names.empty();
}
