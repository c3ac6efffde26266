// Modules and launches of the emulated GPU.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "driver.h"

namespace {

struct Function;
struct Module {
  void* library;
  emu::Module table;
  std::map<std::string, std::unique_ptr<Function>> functions;
};
struct Function {
  Module* module;
  emu::Kernel* kernel;
  std::string label;
  unsigned max_dynamic;
  bool large_clusters = false, launched = false;
  unsigned static_used = 0;
  unsigned registers() const {
    // What the bounds of the launch leave; without bounds what a kernel commonly takes.
    unsigned r = 65536 / std::max(1u, kernel->max_threads * std::max(1u, kernel->min_blocks)) / 8 * 8;
    return std::min(kernel->min_blocks ? 255u : 64u, std::max(16u, r));
  }
  unsigned blocks_per_multiprocessor(unsigned threads, size_t dynamic) const {
    const auto& l = limits();
    if (threads == 0 || threads > kernel->max_threads) return 0;
    const unsigned warps = (threads + 31) / 32 * 32;
    size_t n = std::min(l.blocks_per_multiprocessor, l.threads_per_multiprocessor / warps);
    n = std::min<size_t>(n, l.registers_per_multiprocessor / (registers() * warps));
    n = std::min<size_t>(n, l.shared_per_multiprocessor / (dynamic + static_used + 1024));
    return unsigned(n);
  }
};

struct RawAttribute {
  unsigned id, pad, value[16];
};
struct RawConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  RawAttribute* attributes;
  unsigned num_attributes;
};

uint64_t launches = 0;

// A list of the kernels that ran, a line each, where the environment names a file for it.
void note(Function* f) {
  static const char* path = std::getenv("CHRONAXIE_EMULATED_KERNELS");
  if (f->launched || !path || !*path) return;
  f->launched = true;
  if (FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", f->label.c_str());
    std::fclose(file);
  }
}

}  // namespace

API Result cuModuleLoadData(Module** module, const void* image) {
  Lock lock(big_lock);
  if (Result r = refused_by_capture()) return r;
  // The length of an ELF file: its section headers come last.
  auto* e = static_cast<const unsigned char*>(image);
  if (std::memcmp(e, "\177ELF", 4) != 0) return kInvalidImage;
  uint64_t headers;
  uint16_t entry_bytes, entries, machine;
  std::memcpy(&headers, e + 0x28, 8);
  std::memcpy(&entry_bytes, e + 0x3a, 2);
  std::memcpy(&entries, e + 0x3c, 2);
  std::memcpy(&machine, e + 0x12, 2);
  if (machine == 190) return 209;  // a real cubin: there is no code for this device in it
  const size_t bytes = headers + size_t(entry_bytes) * entries;
  // A name of its own: the loader takes a path that it knows for the library that it had there.
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base && *base ? base : P_tmpdir) + "/emulated-kernel-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return kOutOfMemory;
  bool whole = true;
  for (size_t at = 0; at < bytes && whole;) {
    const ssize_t n = write(file, e + at, bytes - at);
    whole = n > 0;
    at += size_t(n);
  }
  close(file);
  void* library = whole ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) std::fprintf(stderr, "emulated GPU: %s\n", whole ? dlerror() : "no room for a module");
  unlink(path.c_str());
  if (!library) return kInvalidImage;
  auto describe = reinterpret_cast<void (*)(emu::Module*)>(dlsym(library, "emu_module"));
  if (!describe) return kInvalidImage;
  auto* m = new Module;
  m->library = library;
  describe(&m->table);
  if (m->table.version != emu::kVersion) {
    std::fprintf(stderr, "emulated GPU: a kernel was compiled by another version of the emulation\n");
    return kInvalidImage;
  }
  *module = m;
  return kSuccess;
}

API Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  Lock lock(big_lock);
  auto& known = module->functions[name];
  if (!known) {
    for (emu::Kernel** e = module->table.begin; e != module->table.end; e++) {
      emu::Kernel* k = *e;
      if (std::strcmp(k->name, name) != 0 || !k->is_extern_c) continue;
      known.reset(new Function{module, k, name, limits().shared_per_block});
    }
  }
  if (!known) {
    module->functions.erase(name);
    return kNotFound;
  }
  *function = known.get();
  return kSuccess;
}

API Result cuFuncGetAttribute(int* value, int attribute, Function* f) {
  switch (attribute) {
    case 0: *value = int(f->kernel->max_threads); break;
    case 1: *value = int(f->static_used); break;
    case 2: case 3: *value = 0; break;
    case 4: *value = int(f->registers()); break;
    case 8: *value = int(f->max_dynamic); break;
    case 14: *value = f->large_clusters; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}
API Result cuFuncSetAttribute(Function* f, int attribute, int value) {
  if (attribute == 8) {
    if (value < 0 || unsigned(value) + f->static_used > limits().shared_per_block_optin) return kInvalidValue;
    f->max_dynamic = unsigned(value);
    return kSuccess;
  }
  if (attribute == 14 && limits().major >= 9) {
    f->large_clusters = value != 0;
    return kSuccess;
  }
  return kInvalidValue;
}
API Result cuFuncGetParamInfo(Function* f, size_t index, size_t* offset, size_t* size) {
  if (index >= size_t(f->kernel->parameters)) return kInvalidValue;
  size_t at = 0;
  for (size_t i = 0;; i++) {
    at = (at + f->kernel->alignments[i] - 1) / f->kernel->alignments[i] * f->kernel->alignments[i];
    if (i == index) break;
    at += f->kernel->sizes[i];
  }
  *offset = at;
  *size = f->kernel->sizes[index];
  return kSuccess;
}

API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* f, int threads, size_t shared) {
  *blocks = int(f->blocks_per_multiprocessor(unsigned(threads), shared));
  return kSuccess;
}

static Result read(const RawConfig* c, Dim& cluster, bool& cooperative) {
  cluster = {1, 1, 1};
  cooperative = false;
  for (unsigned i = 0; i < c->num_attributes; i++) {
    const RawAttribute& a = c->attributes[i];
    if (a.id == 2) cooperative = a.value[0] != 0;
    if (a.id == 4) cluster = {a.value[0], a.value[1], a.value[2]};
  }
  return cluster.x && cluster.y && cluster.z ? kSuccess : kInvalidClusterSize;
}
static Result check_cluster(const Function* f, const Dim& k) {
  const unsigned blocks = k.x * k.y * k.z;
  if (blocks > 1 && limits().major < 9) return kInvalidValue;
  return blocks > limits().cluster_blocks || (blocks > 8 && !f->large_clusters) ? kInvalidClusterSize : kSuccess;
}

API Result cuOccupancyMaxActiveClusters(int* clusters, Function* f, const RawConfig* c) {
  Dim k;
  bool cooperative;
  if (Result r = read(c, k, cooperative)) return r;
  if (Result r = check_cluster(f, k)) return r;
  const unsigned each = f->blocks_per_multiprocessor(c->block[0] * c->block[1] * c->block[2], c->shared_bytes);
  // A cluster lies in a group of multiprocessors; an H200 has groups of 16 and 18.
  const unsigned group = std::min(16u, limits().multiprocessors), blocks = k.x * k.y * k.z;
  *clusters = int(limits().multiprocessors / group * (group * each / blocks) +
                  limits().multiprocessors % group * each / blocks);
  return kSuccess;
}

static Result make(const RawConfig* c, Function* f, void** arguments, void** extra, std::shared_ptr<emu::Launch>& launch) {
  const auto& l = limits();
  const uint64_t threads = uint64_t(c->block[0]) * c->block[1] * c->block[2];
  if (extra || !c->grid[0] || !c->grid[1] || !c->grid[2] || c->grid[0] > 2147483647u || c->grid[1] > 65535 ||
      c->grid[2] > 65535 || threads == 0 || c->block[0] > 1024 || c->block[1] > 1024 || c->block[2] > 64)
    return kInvalidValue;
  if (threads > f->kernel->max_threads) return kInvalidValue;
  if (c->shared_bytes > f->max_dynamic) return kInvalidValue;
  launch = std::make_shared<emu::Launch>();
  if (Result r = read(c, launch->cluster, launch->cooperative)) return r;
  const Dim& k = launch->cluster;
  if (Result r = check_cluster(f, k)) return r;
  if (c->grid[0] % k.x || c->grid[1] % k.y || c->grid[2] % k.z) return kInvalidClusterSize;
  const uint64_t blocks = uint64_t(c->grid[0]) * c->grid[1] * c->grid[2];
  const unsigned each = f->blocks_per_multiprocessor(unsigned(threads), c->shared_bytes);
  if (each == 0) return kLaunchOutOfResources;
  if (launch->cooperative && blocks > uint64_t(each) * l.multiprocessors) return kCooperativeTooLarge;
  launch->module = &f->module->table;
  launch->kernel = f->kernel;
  launch->label = f->label.c_str();
  launch->grid = {c->grid[0], c->grid[1], c->grid[2]};
  launch->block = {c->block[0], c->block[1], c->block[2]};
  launch->dynamic_shared = c->shared_bytes;
  launch->static_limit = std::min(l.shared_per_block, l.shared_per_block_optin - c->shared_bytes);
  launch->static_used = &f->static_used;
  for (int i = 0; i < f->kernel->parameters; i++) {
    const size_t at = launch->arguments.size(), size = f->kernel->sizes[i];
    launch->arguments.resize(at + (size + sizeof(emu::ArgumentLine) - 1) / sizeof(emu::ArgumentLine));
    std::memcpy(launch->arguments.data() + at, arguments[i], size);
    launch->offsets.push_back(at);
  }
  return kSuccess;
}

static Work work_of(std::shared_ptr<emu::Launch> launch) {
  return [launch]() -> Result {
    std::string why;
    // Each launch in another order, the same in each run of the process.
    const uint64_t s = emu::seed() ? emu::seed() * 1000003 + ++launches : 0;
    if (Result r = emu::run(*launch, s, why)) return fail(r, why);
    why = emu::check_red_zones();
    return why.empty() ? kSuccess : fail(kIllegalAddress, std::string(launch->label) + ": " + why);
  };
}

API Result cuLaunchKernelEx(const RawConfig* c, Function* f, void** arguments, void** extra) {
  Lock lock(big_lock);
  if (sticky) return sticky;
  std::shared_ptr<emu::Launch> launch;
  if (Result r = make(c, f, arguments, extra, launch)) return r;
  note(f);
  about_to_launch(f->label.c_str());
  return put(c->stream, work_of(launch));
}

// --- kernels of graphs

namespace {
struct RawNode {
  Function* function;
  unsigned grid[3], block[3], shared_bytes;
  void** arguments;
  void** extra;
  void *kernel, *context;
};
}  // namespace

struct KernelNode {
  Graph* graph;
  size_t index;
  Function* function;
  RawConfig config;
  std::vector<RawAttribute> attributes;
  // Each argument's bytes.
  std::vector<std::vector<char>> values;
  void take(const RawNode* p) {
    function = p->function;
    config = {};
    std::memcpy(config.grid, p->grid, sizeof p->grid);
    std::memcpy(config.block, p->block, sizeof p->block);
    config.shared_bytes = p->shared_bytes;
    values.clear();
    for (int i = 0; i < function->kernel->parameters; i++) {
      const char* value = static_cast<const char*>(p->arguments[i]);
      values.emplace_back(value, value + function->kernel->sizes[i]);
    }
  }
};

Result work_of(const KernelNode& node, Work& work) {
  RawConfig c = node.config;
  std::vector<RawAttribute> attributes = node.attributes;
  c.attributes = attributes.data();
  c.num_attributes = unsigned(attributes.size());
  std::vector<void*> arguments;
  for (const auto& v : node.values) arguments.push_back(const_cast<char*>(v.data()));
  std::shared_ptr<emu::Launch> launch;
  if (Result r = make(&c, node.function, arguments.data(), nullptr, launch)) return r;
  Function* f = node.function;
  work = [f, run = work_of(launch)]() -> Result {
    note(f);
    return run();
  };
  return kSuccess;
}

API Result cuGraphCreate(Graph** graph, unsigned flags) {
  if (flags) return kInvalidValue;
  *graph = new Graph;
  return kSuccess;
}
// Kernels run in the order in which they were put in: each must be behind the last.
API Result cuGraphAddKernelNode_v2(KernelNode** node, Graph* graph, KernelNode* const* before, size_t many, const RawNode* p) {
  Lock lock(big_lock);
  const auto& all = graph->kernels;
  if (p->extra || p->kernel || p->context || many != (all.empty() ? 0 : 1) || (many && before[0] != all.back().second.get()))
    return kInvalidValue;
  auto made = std::make_shared<KernelNode>();
  made->graph = graph;
  made->index = graph->nodes.size();
  made->take(p);
  graph->kernels.emplace_back(made->index, made);
  graph->nodes.emplace_back();
  *node = made.get();
  return kSuccess;
}
API Result cuGraphKernelNodeSetAttribute(KernelNode* node, unsigned id, const unsigned* value) {
  RawAttribute a{id, 0, {}};
  std::memcpy(a.value, value, sizeof a.value);
  node->attributes.push_back(a);
  return kSuccess;
}
API Result cuGraphExecKernelNodeSetParams_v2(Graph* exec, KernelNode* node, const RawNode* p) {
  Lock lock(big_lock);
  if (node->index >= exec->nodes.size() || p->extra || p->function != node->function) return kInvalidValue;
  // Of the executable graph alone.
  KernelNode renewed = *node;
  renewed.take(p);
  return work_of(renewed, exec->nodes[node->index]);
}
