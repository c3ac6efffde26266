// libnvrtc of the emulated GPU: the functions that crates/chronaxie-runtime/src/cuda/sys.rs asks for. A "cubin" is a shared
// object for the host, which cuModuleLoadData of driver.cpp loads.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "abi.h"
#include "translate.h"

#define API extern "C" __attribute__((visibility("default")))

extern char** environ;

namespace {

constexpr int kSuccess = 0, kInvalidInput = 3, kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6, kInternal = 11;

struct Program {
  std::string name, text, log, binary;
  std::vector<std::pair<std::string, std::string>> headers;
};

// Where this library lies; the folder above holds the headers that kernels see.
std::string home() {
  Dl_info info = {};
  dladdr(reinterpret_cast<void*>(&home), &info);
  std::string path = info.dli_fname ? info.dli_fname : "";
  return path.substr(0, path.rfind('/')) + "/..";
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream f(path, std::ios::binary);
  f << text;
  return bool(f.flush());
}
std::string read_file(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  std::stringstream b;
  b << f.rdbuf();
  return b.str();
}

// The exit status of a command, whose messages go to `log`.
int command(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", 0, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), 01 | 0100 | 01000, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // The compiler is not to be run under the stand-ins.
  std::vector<char*> environment;
  for (char** e = environ; *e; e++)
    if (std::strncmp(*e, "LD_PRELOAD=", 11) != 0 && std::strncmp(*e, "LD_LIBRARY_PATH=", 16) != 0) environment.push_back(*e);
  environment.push_back(nullptr);
  pid_t pid;
  int rc = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (rc) return 127;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// The words of a variable of the environment: `zig c++` is two.
std::vector<std::string> compiler() {
  const char* named = std::getenv("CHRONAXIE_EMULATED_CXX");
  std::istringstream words(named && *named ? named : "g++");
  std::vector<std::string> list;
  for (std::string w; words >> w;) list.push_back(w);
  return list;
}

// "a.cu:2:5: error: ..." as NVRTC writes it: "a.cu(2): error: ...".
std::string in_nvrtc_style(const std::string& log) {
  return std::regex_replace(log, std::regex("(^|\n)([^\n:]+):([0-9]+):[0-9]+: "), "$1$2($3): ");
}

int compile(Program& p, const std::vector<std::string>& options) {
  std::string arch = "90", extra;
  bool fmad = true;
  std::vector<std::string> defines;
  for (const std::string& o : options) {
    if (o.compare(0, 22, "--gpu-architecture=sm_") == 0) arch = o.substr(22);
    else if (o == "--fmad=false") fmad = false;
    else if (o.compare(0, 2, "-D") == 0) defines.push_back(o);
  }
  const bool special = !arch.empty() && arch.back() == 'a';
  const std::string number = special ? arch.substr(0, arch.size() - 1) : arch;

  const char* base = std::getenv("TMPDIR");
  std::string pattern = std::string(base && *base ? base : P_tmpdir) + "/emulated-nvrtc-XXXXXX";
  std::vector<char> path(pattern.begin(), pattern.end());
  path.push_back(0);
  if (!mkdtemp(path.data())) {
    p.log = "no folder for the compiler's files";
    return kInternal;
  }
  const std::string dir = path.data();
  int result = kSuccess;
  std::string part = p.name;
  try {
    std::string text = emu::translate(p.text).text;
    if (!write_file(dir + "/kernel.cpp", text)) result = kInternal;
    for (auto& [name, header] : p.headers) {
      part = name;
      const std::string at = dir + "/" + name;
      for (size_t slash = at.find('/', dir.size() + 1); slash != std::string::npos; slash = at.find('/', slash + 1))
        mkdir(at.substr(0, slash).c_str(), 0700);
      if (!write_file(at, "#line 1 \"" + name + "\"\n" + emu::translate(header).text)) result = kInternal;
    }
  } catch (const std::exception& e) {
    p.log = part + "(1): error: the emulated NVRTC cannot translate it: " + e.what();
    result = kCompilation;
  }
  if (result == kSuccess) {
    std::vector<std::string> words = compiler();
    for (const char* w : {"-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fvisibility=hidden", "-fno-exceptions",
                          "-fno-rtti", "-fno-strict-aliasing", "-fwrapv", "-fno-threadsafe-statics", "-fno-math-errno",
                          "-fno-trapping-math", "-fno-plt", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
                          "-nostdinc",
                          // A GPU refuses what is not aligned; a trap tells the machine.
                          "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"})
      words.push_back(w);
#if defined(__x86_64__)
    // Fused operations are one instruction where the processor has them, else calls that give the same bits.
    if (__builtin_cpu_supports("fma")) words.push_back("-mfma");
    // So are those between half and float.
    unsigned eax, ebx, ecx, edx;
    if (__builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C) words.push_back("-mf16c");
#endif
    words.push_back(fmad ? "-ffp-contract=fast" : "-ffp-contract=off");
    words.push_back("-D__CUDA_ARCH__=" + number + "0");
    words.push_back("-D__CUDACC_VER_MAJOR__=13");
    if (special) words.push_back("-D__CUDA_ARCH_FEAT_SM" + number + "_ALL=1");
    words.insert(words.end(), defines.begin(), defines.end());
    words.insert(words.end(), {"-I", dir, "-include", home() + "/device/cuda.h", dir + "/kernel.cpp", "-o", dir + "/kernel.so"});
    // The library of C++, which no kernel uses, is a seventh of the time that most of them take.
    const std::string cxx = words[0].substr(words[0].rfind('/') + 1);
    if (cxx.compare(0, 3, "g++") == 0) words.insert(words.end(), {"-nostdlib", "-lm", "-lgcc_s", "-lc"});
    else words.push_back("-lm");
    const int rc = command(words, dir + "/log");
    p.log = in_nvrtc_style(read_file(dir + "/log"));
    // Of many errors the first say what is wrong.
    if (p.log.size() > 20000) p.log = p.log.substr(0, 20000) + "\n...\n";
    if (rc == 127) p.log += "the host's compiler `" + words[0] + "` cannot be run";
    if (rc) result = kCompilation;
  }
  if (result == kSuccess) {
    // What the assembler would say of each kernel; registers and spills are unknown here, and told as none spilled.
    void* library = dlopen((dir + "/kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    auto describe = library ? reinterpret_cast<void (*)(emu::Module*)>(dlsym(library, "emu_module")) : nullptr;
    if (!describe) {
      p.log += library ? "the module has no table" : dlerror();
      result = kInternal;
    } else {
      emu::Module m = {};
      describe(&m);
      std::ostringstream log;
      for (emu::Kernel** e = m.begin; e != m.end; e++) {
        const emu::Kernel* k = *e;
        // As the driver tells them: driver.cpp.
        const unsigned blocks = k->min_blocks ? k->min_blocks : 1;
        unsigned registers = 65536 / (k->max_threads * blocks) / 8 * 8;
        registers = std::min(k->min_blocks ? 255u : 64u, std::max(16u, registers));
        std::string name = k->is_extern_c ? k->name : "_Z" + std::to_string(std::strlen(k->name)) + k->name;
        log << "ptxas info    : Compiling entry function '" << name << "' for 'sm_" << arch << "'\n"
            << "ptxas info    : Function properties for " << name << "\n"
            << "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            << "ptxas info    : Used " << registers << " registers\n";
      }
      p.log += log.str();
      p.binary = read_file(dir + "/kernel.so");
    }
    if (library) dlclose(library);
  }
  if (!std::getenv("CHRONAXIE_EMULATED_KEEP")) command({"rm", "-rf", dir}, "/dev/null");
  else std::fprintf(stderr, "emulated NVRTC: %s is in %s\n", p.name.c_str(), dir.c_str());
  return result;
}

const int kArchs[] = {75, 80, 86, 87, 89, 90, 100, 120};

}  // namespace

API int nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return kSuccess;
}
API const char* nvrtcGetErrorString(int code) {
  switch (code) {
    case kSuccess: return "NVRTC_SUCCESS";
    case kInvalidInput: return "NVRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram: return "NVRTC_ERROR_INVALID_PROGRAM";
    case kInvalidOption: return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilation: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}
API int nvrtcGetNumSupportedArchs(int* count) {
  *count = int(sizeof kArchs / sizeof *kArchs);
  return kSuccess;
}
API int nvrtcGetSupportedArchs(int* archs) {
  std::memcpy(archs, kArchs, sizeof kArchs);
  return kSuccess;
}
API int nvrtcCreateProgram(Program** program, const char* text, const char* name, int headers, const char* const* texts,
                           const char* const* names) {
  if (!text || headers < 0) return kInvalidInput;
  auto* p = new Program;
  p->text = text;
  p->name = name ? name : "default_program";
  for (int i = 0; i < headers; i++) p->headers.emplace_back(names[i], texts[i]);
  *program = p;
  return kSuccess;
}
API int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}
API int nvrtcCompileProgram(Program* p, int count, const char* const* options) {
  return p ? compile(*p, {options, options + count}) : kInvalidProgram;
}
API int nvrtcGetProgramLogSize(Program* p, size_t* bytes) {
  *bytes = p->log.size() + 1;
  return kSuccess;
}
API int nvrtcGetProgramLog(Program* p, char* to) {
  std::memcpy(to, p->log.c_str(), p->log.size() + 1);
  return kSuccess;
}
API int nvrtcGetCUBINSize(Program* p, size_t* bytes) {
  *bytes = p->binary.size();
  return kSuccess;
}
API int nvrtcGetCUBIN(Program* p, char* to) {
  std::memcpy(to, p->binary.data(), p->binary.size());
  return kSuccess;
}
