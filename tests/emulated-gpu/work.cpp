// Streams, events and graphs of the emulated GPU.
//
// Work is put into its stream's queue and done as late as the driver may: when somebody waits for the stream, an event
// or the context, or asks an event (one piece of work a question). So a wait that is missing shows. With
// CHRONAXIE_EMULATED_STREAMS=early it is done when it is put there, which shows waits that are missing the other way.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "driver.h"

static double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

static std::vector<std::unique_ptr<Stream>> streams;
// The default stream of each device, and of each thread.
static std::map<std::pair<int, uint64_t>, Stream*> defaults;
static std::vector<Capture*> captures;

static bool early() {
  static const bool e = [] {
    const char* text = std::getenv("CHRONAXIE_EMULATED_STREAMS");
    return text && std::strcmp(text, "early") == 0;
  }();
  return e;
}

// CHRONAXIE_EMULATED_LOST=DEVICE:KERNEL:N[:silent]: with the N-th launch of the kernel the device does nothing any more; the driver
// says so, or the host waits for ever.
static struct Lost {
  int device = -1;
  std::string kernel;
  unsigned launches = 0;
  bool silent = false, now = false;
  Lost() {
    const char* text = std::getenv("CHRONAXIE_EMULATED_LOST");
    const std::string all = text ? text : "";
    const size_t a = all.find(':'), b = a == std::string::npos ? a : all.find(':', a + 1);
    if (b == std::string::npos) return;
    device = std::atoi(all.c_str());
    kernel = all.substr(a + 1, b - a - 1);
    launches = unsigned(std::atoi(all.c_str() + b + 1));
    silent = all.find(":silent", b) != std::string::npos;
  }
} lost;
void about_to_launch(const char* kernel) {
  if (current_device() != lost.device || lost.kernel != kernel || lost.launches == 0) return;
  if (--lost.launches == 0) lost.now = emu::waits_for_ever = true;
}
static bool is_lost(const Stream* s) { return lost.now && s->device == lost.device; }

static Stream* new_stream(bool blocking) {
  streams.emplace_back(new Stream);
  streams.back()->device = current_device();
  streams.back()->blocking = blocking;
  return streams.back().get();
}

static uint64_t thread_id() {
  static std::mutex m;
  static uint64_t next = 1;
  static thread_local uint64_t mine = 0;
  if (!mine) {
    std::lock_guard<std::mutex> l(m);
    mine = next++;
  }
  return mine;
}

Stream* stream_of(void* handle) {
  const auto raw = reinterpret_cast<uint64_t>(handle);
  if (raw > 2) return static_cast<Stream*>(handle);
  const bool per_thread = raw == 2;
  Stream*& s = defaults[{current_device(), per_thread ? thread_id() : 0}];
  if (!s) s = new_stream(true);
  return s;
}
static bool is_legacy(Stream* s) { return defaults.count({current_device(), 0}) && defaults[{current_device(), 0}] == s; }

// Does the oldest piece of work of a stream.
static Result step(Stream* s) {
  while (is_lost(s) && lost.silent) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (is_lost(s)) {
    s->queue.clear();
    return kLost;
  }
  Work work = std::move(s->queue.front().work);
  s->queue.pop_front();
  if (sticky) return sticky;
  s->running = true;
  Result r = work();
  s->running = false;
  return r;
}

// Does a piece of work of a stream that does nothing now, while a launch of another waits for it.
static bool step_elsewhere() {
  for (size_t i = 0; i < streams.size(); i++) {
    Stream* s = streams[i].get();
    if (s->running || s->queue.empty() || is_lost(s)) continue;
    const Queued& first = s->queue.front();
    if (first.event && first.event->done < first.recorded) continue;
    step(s);
    return true;
  }
  return false;
}
[[maybe_unused]] static const bool elsewhere = (emu::start_elsewhere = step_elsewhere, true);

Result drain(Stream* s) {
  Result r = sticky;
  while (!s->queue.empty()) {
    Result one = step(s);
    if (one && !r) r = one;
  }
  return r;
}

Result drain_all() {
  Result r = sticky;
  // Index by index: work may make streams.
  for (size_t i = 0; i < streams.size(); i++) {
    if (is_lost(streams[i].get()) && lost.device != current_device()) continue;
    Result one = drain(streams[i].get());
    if (one && !r) r = one;
  }
  if (!r) {
    std::string trouble = emu::check_red_zones();
    if (!trouble.empty()) r = fail(kIllegalAddress, trouble);
  }
  return r;
}

// The legacy stream and the blocking ones wait for each other.
static void order_defaults(Stream* s) {
  if (!s->blocking) return;
  const bool legacy = is_legacy(s);
  for (size_t i = 0; i < streams.size(); i++) {
    Stream* other = streams[i].get();
    if (other != s && other->blocking && (legacy || is_legacy(other))) drain(other);
  }
}

Result put(void* handle, Work work, Event* event, uint64_t recorded) {
  if (sticky) return sticky;
  Stream* s = stream_of(handle);
  if (is_lost(s) && !lost.silent) return kLost;
  if (s->capture) {
    s->capture->graph->nodes.push_back(std::move(work));
    return kSuccess;
  }
  order_defaults(s);
  s->queue.push_back({std::move(work), event, recorded});
  if (early()) return drain(s);
  return kSuccess;
}

// Global, of this thread alone, or relaxed.
static thread_local unsigned capture_mode = 0;

Result refused_by_capture() {
  for (Capture* c : captures)
    if (capture_mode != 2 && c->mode != 2 && (c->thread == thread_id() || (capture_mode == 0 && c->mode == 0))) {
      c->valid = false;
      return kUnsupportedCapture;
    }
  return kSuccess;
}

// --- streams and events

API Result cuStreamCreate(void** stream, unsigned flags) {
  Lock lock(big_lock);
  *stream = new_stream(!(flags & 1));
  return kSuccess;
}
API Result cuStreamSynchronize(void* stream) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture) {
    s->capture->valid = false;
    return kUnsupportedCapture;
  }
  order_defaults(s);
  Result r = drain(s);
  return r ? r : sticky;
}
API Result cuStreamIsCapturing(void* stream, unsigned* status) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  *status = !s->capture ? 0 : s->capture->valid ? 1 : 2;
  return kSuccess;
}

static void leave(Capture* c) {
  for (Stream* s : c->streams) s->capture = nullptr;
  for (size_t i = 0; i < captures.size(); i++)
    if (captures[i] == c) captures.erase(captures.begin() + long(i));
}

API Result cuThreadExchangeStreamCaptureMode(unsigned* mode) {
  if (*mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}
API Result cuStreamBeginCapture_v2(void* stream, unsigned mode) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture || reinterpret_cast<uint64_t>(stream) == 0) return kUnsupportedCapture;
  auto* c = new Capture;
  c->origin = s;
  c->mode = mode;
  c->thread = thread_id();
  c->streams.push_back(s);
  s->capture = c;
  captures.push_back(c);
  return sticky;
}
API Result cuStreamEndCapture(void* stream, Graph** graph) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  Capture* c = s->capture;
  *graph = nullptr;
  if (!c) return kInvalidValue;
  leave(c);
  const bool valid = c->valid;
  if (valid) *graph = c->graph.release();
  // Events may name the capture still; there are few.
  return valid ? kSuccess : kCaptureInvalidated;
}

API Result cuEventCreate(Event** event, unsigned flags) {
  Lock lock(big_lock);
  *event = new Event{!(flags & 2)};
  return kSuccess;
}
API Result cuEventDestroy_v2(Event*) {
  // Work that is queued may name it; there are few.
  return kSuccess;
}
API Result cuEventRecord(Event* e, void* stream) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (s->capture) {
    e->capture = s->capture;
    return kSuccess;
  }
  e->capture = nullptr;
  const uint64_t n = ++e->recorded;
  e->stream = s;
  return put(stream, [=]() -> Result {
    if (n > e->done) e->done = n;
    e->ms = now_ms();
    return kSuccess;
  });
}

// Does the work of the event's stream until the event has come.
static Result reach(Event* e, uint64_t n) {
  Result r = sticky;
  while (e->done < n && e->stream && !e->stream->queue.empty()) {
    Result one = step(e->stream);
    if (one && !r) r = one;
  }
  return !r && e->done < n && e->stream && is_lost(e->stream) ? kLost : r;
}

API Result cuStreamWaitEvent(void* stream, Event* e, unsigned) {
  Lock lock(big_lock);
  Stream* s = stream_of(stream);
  if (e->capture) {
    // The stream joins the capture, whose nodes run in the order in which they were put there.
    if (s->capture && s->capture != e->capture) return kInvalidValue;
    if (!s->capture) {
      s->capture = e->capture;
      e->capture->streams.push_back(s);
    }
    return kSuccess;
  }
  if (s->capture || e->recorded == e->done) return kSuccess;
  const uint64_t n = e->recorded;
  return put(stream, [=] { return reach(e, n); }, e, n);
}
API Result cuEventSynchronize(Event* e) {
  Lock lock(big_lock);
  if (Result r = e->capture ? kInvalidValue : kSuccess) return r;
  return reach(e, e->recorded);
}
API Result cuEventQuery(Event* e) {
  Lock lock(big_lock);
  if (e->done < e->recorded && e->stream && is_lost(e->stream)) return lost.silent ? kNotReady : kLost;
  if (e->done < e->recorded && e->stream && !e->stream->queue.empty())
    if (Result r = step(e->stream)) return r;
  return sticky ? sticky : e->done < e->recorded ? kNotReady : kSuccess;
}
API Result cuEventElapsedTime(float* ms, Event* a, Event* b) {
  Lock lock(big_lock);
  if (!a->timing || !b->timing || !a->recorded || !b->recorded) return kInvalidHandle;
  if (a->done < a->recorded || b->done < b->recorded) return kNotReady;
  *ms = float(b->ms - a->ms);
  return kSuccess;
}

// --- graphs

API Result cuGraphGetNodes(Graph* graph, void**, size_t* count) {
  *count = graph->nodes.size();
  return kSuccess;
}
API Result cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, uint64_t) {
  std::unique_ptr<Graph> made(new Graph(*graph));
  for (auto& k : made->kernels)
    if (Result r = work_of(*k.second, made->nodes[k.first])) return r;
  *exec = made.release();
  return kSuccess;
}
API Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return kSuccess;
}
API Result cuGraphExecDestroy(Graph*) {
  // A replay may wait in a queue.
  return kSuccess;
}
API Result cuGraphLaunch(Graph* exec, void* stream) {
  Lock lock(big_lock);
  // As it is now: what is set in it from here on is of later replays.
  return put(stream, [nodes = exec->nodes]() -> Result {
    for (const Work& w : nodes)
      if (Result r = w()) return r;
    return kSuccess;
  });
}
