//! The runtime on a real device.
//!
//! Where there is none, every test prints why it was skipped; with `CHRONAXIE_REQUIRE_GPU=1` that is a failure.

#![allow(unsafe_code)]

#[path = "gpu/bundle.rs"]
mod bundle;
#[path = "gpu/carrier.rs"]
mod carrier;

use chronaxie_runtime::cuda::{
    Arg, Boxes, CudaDevice, DeviceBuffer, Event, Graph, Header, Kernel, KernelSource, LaunchConfig, PinnedBuffer,
    Specialisation, StreamRef, TensorMap, UserKernel, cache, copy_device, copy_to_device, copy_to_host, download,
    fill_bytes, upload, upload_on,
};
use chronaxie_runtime::{Device, Dtype, Error, ErrorKind, Result, View, ViewMut};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const HEADERS: &[Header] = &[("toy.cuh", include_str!("kernels/toy.cuh"))];

/// The device for one test at a time: waiting for a whole device is not legal while another thread captures on it.
struct Gpu {
    device: Arc<CudaDevice>,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Gpu {
    type Target = Arc<CudaDevice>;
    fn deref(&self) -> &Arc<CudaDevice> {
        &self.device
    }
}

fn device() -> Option<Gpu> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::open(0).and_then(|d| d.require_compiler().map(|()| d)) {
        Ok(device) => Some(Gpu { device, _turn: turn }),
        Err(e) if std::env::var_os("CHRONAXIE_REQUIRE_GPU").is_some_and(|v| v == "1") => panic!("{e}"),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

fn spec() -> Specialisation {
    let mut s = Specialisation::new(
        KernelSource::embedded("tests/kernels/toy.cu", include_str!("kernels/toy.cu")),
        &["toy_scale", "toy_pair", "toy_slow", "toy_shared", "toy_cluster", "toy_grid", "toy_fault"],
    );
    s.headers = HEADERS;
    s.constants = vec![("kShift", 3.into())];
    s
}

fn kernel(device: &Arc<CudaDevice>, entry: &str) -> Kernel {
    device.kernel(&spec(), entry).unwrap()
}

/// y = 2 a x + 3 on `stream`.
fn scale(k: &Kernel, stream: StreamRef, x: &DeviceBuffer, y: &DeviceBuffer, a: f32, n: usize) -> Result<()> {
    let args = [Arg::U64(x.address()), Arg::U64(y.address()), Arg::F32(a), Arg::I64(n as i64)];
    // SAFETY: both buffers hold n floats in every test here, and are used by one stream at a time.
    unsafe { k.launch(stream, &LaunchConfig::linear(n, 256), &args) }
}

fn floats(buffer: &DeviceBuffer, n: usize) -> Vec<f32> {
    download(&buffer.view(Dtype::F32, [n]).unwrap()).unwrap()
}

/// Runs one test of this binary again, as another process.
fn child(test: &str, set: &[(&str, &str)]) -> Output {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args([test, "--exact", "--nocapture"]).env("CHRONAXIE_TEST_CHILD", "1").envs(set.iter().copied());
    c.output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os("CHRONAXIE_TEST_CHILD").is_some()
}

#[test]
fn a_device_tells_about_itself() {
    let Some(d) = device() else { return };
    let a = d.attributes().unwrap();
    println!("{a:#?}");
    assert_eq!((a.compute_capability, a.sm_count), (d.props().compute_capability, d.props().sm_count));
    assert!(a.compute_capability >= (6, 0) && a.sm_count > 0 && a.cores >= 64 * a.sm_count);
    assert!(a.warp_size == 32 && a.threads_per_block == 1024 && a.threads_per_sm >= 1024 && a.blocks_per_sm >= 16);
    assert!(a.memory.free <= a.memory.total && a.memory.total > 1 << 30);
    assert!(a.shared_per_block >= 48 << 10 && a.shared_per_block_optin <= a.shared_per_sm);
    assert!(a.max_grid.0 == i32::MAX as u32 && a.max_block.2 == 64 && a.constant_bytes == 65536);
    assert!(a.driver_version >= (12, 4) && a.pci_id.matches(':').count() == 2, "{}", a.pci_id);
    assert!(d.props().memory_bytes_per_s > 50_000_000_000 && !a.name.is_empty());
    // One device for an index, however often it is opened, from any thread.
    let other = std::thread::spawn(|| CudaDevice::open(0).unwrap()).join().unwrap();
    assert!(Arc::ptr_eq(&*d, &other));
    let e = CudaDevice::open(1000).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Device);
    assert!(e.to_string().contains("cuda:1000 does not exist: this process sees"), "{e}");
    let (auto, why) = Device::open("auto".parse().unwrap()).unwrap();
    assert!(matches!(auto, Device::Cuda(_)) && why.unwrap().contains(d.name()));
}

/// The context of the calling thread, as the driver tells it.
#[cfg(target_os = "linux")]
fn current_context() -> usize {
    // SAFETY: the driver is loaded already, and the symbol has this signature.
    unsafe {
        let library = libloading::Library::new("libcuda.so.1").unwrap();
        let get = library.get::<unsafe extern "C" fn(*mut usize) -> u32>(b"cuCtxGetCurrent").unwrap();
        let mut context = 1;
        assert_eq!(get(&raw mut context), 0);
        context
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_callers_context_is_restored() {
    let Some(gpu) = device() else { return };
    let d = gpu.device.clone();
    std::thread::spawn(move || {
        assert_eq!(current_context(), 0);
        let k = kernel(&d, "toy_scale");
        let (x, y) = (upload(&d, &[1f32; 8], [8]).unwrap(), upload(&d, &[0f32; 8], [8]).unwrap());
        scale(&k, d.default_stream(), &x, &y, 1.0, 8).unwrap();
        assert_eq!(floats(&y, 8), [5.0; 8]);
        drop((x, y));
        assert_eq!(current_context(), 0);
        let outer = d.guard().unwrap();
        let ours = current_context();
        assert_ne!(ours, 0);
        drop(d.guard().unwrap());
        assert_eq!(current_context(), ours);
        drop(outer);
        assert_eq!(current_context(), 0);
    })
    .join()
    .unwrap();
}

#[test]
fn memory_goes_there_and_back() {
    let Some(d) = device() else { return };
    let stream = d.new_stream().unwrap();
    let data: Vec<f32> = (0..100_003).map(|i| i as f32).collect();
    for stream in [StreamRef::LEGACY, StreamRef::PER_THREAD, stream.as_ref()] {
        let a = upload_on(&d, stream, &data, [data.len()]).unwrap();
        assert!(a.address().is_multiple_of(256));
        let mut b = DeviceBuffer::alloc(&d, stream, a.bytes()).unwrap();
        fill_bytes(&mut b.bytes_view_mut(), 0xff, stream).unwrap();
        stream.synchronize(&d).unwrap();
        assert!(floats(&b, data.len()).iter().all(|v| v.is_nan()));
        copy_device(&mut b.bytes_view_mut(), &a.bytes_view(), stream).unwrap();
        let mut back = vec![0f32; data.len()];
        let mut host = ViewMut::from_slice(&mut back, [data.len()]).unwrap();
        copy_to_host(&mut host, &b.view(Dtype::F32, [data.len()]).unwrap(), stream).unwrap();
        assert_eq!(back, data);
    }
    let mut empty = upload::<f32>(&d, &[], [0, 3]).unwrap();
    assert_eq!((empty.address(), empty.bytes()), (0, 0));
    assert!(download::<f32>(&empty.view(Dtype::F32, [0]).unwrap()).unwrap().is_empty());
    copy_to_device(&mut empty.bytes_view_mut(), &View::from_slice::<u8>(&[], [0]).unwrap(), stream.as_ref()).unwrap();

    let mut small = DeviceBuffer::alloc(&d, &stream, 16).unwrap();
    let m = small.view(Dtype::F64, [3]).unwrap_err().to_string();
    assert!(m.contains("(3,)") && m.contains("16 bytes"), "{m}");
    assert!(small.view_mut(Dtype::F32, [usize::MAX, 2]).is_err());
    let host = [0f32; 4];
    let host = View::from_slice(&host, [4]).unwrap();
    assert!(copy_device(&mut small.view_mut(Dtype::F32, [4]).unwrap(), &host, &stream).is_err());
    let m = copy_to_device(&mut small.view_mut(Dtype::F32, [2]).unwrap(), &host, &stream).unwrap_err().to_string();
    assert!(m.contains("(4,)") && m.contains("(2,)"), "{m}");
}

#[test]
fn out_of_memory_says_how_much_and_harms_nothing() {
    let Some(d) = device() else { return };
    let stream = d.new_stream().unwrap();
    let total = d.memory_info().unwrap().total as usize;
    for asked in [total + (1 << 30), usize::MAX / 2] {
        let e = DeviceBuffer::alloc(&d, &stream, asked).err().unwrap();
        let ErrorKind::OutOfMemory { asked: told, free } = *e.kind() else { panic!("{e}") };
        assert_eq!(told, asked as u64);
        assert!(free <= total as u64 && e.to_string().contains(&free.to_string()), "{e}");
        println!("{e}");
    }
    // Memory that was freed on one stream serves another, and what the pool keeps can be given back.
    let other = d.new_stream().unwrap();
    let big = total / 3;
    for _ in 0..4 {
        for s in [&stream, &other] {
            drop(DeviceBuffer::alloc(&d, s, big).unwrap());
        }
    }
    d.release_cached_memory().unwrap();
    let x = upload_on(&d, &stream, &[1f32, 2.0], [2]).unwrap();
    assert_eq!(floats(&x, 2), [1.0, 2.0]);
}

#[test]
fn launches_compute_and_wrong_ones_are_refused_by_name() {
    let Some(d) = device() else { return };
    let (stream, k) = (d.new_stream().unwrap(), kernel(&d, "toy_scale"));
    assert_eq!((k.name(), k.parameters()), ("tests/kernels/toy.cu:toy_scale", 4));
    assert_eq!(k.resources().unwrap().registers, u64::from(k.registers()));
    assert!(k.local_bytes() == 0 && k.max_threads() == 256 && k.shared_bytes() == 0);
    assert!(k.max_active_blocks(256, 0).unwrap() >= 4 && (0.5..=1.0).contains(&k.occupancy(256, 0).unwrap()));
    for n in [1usize, 255, 256, 257, 1_000_003] {
        let x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
        let (x, y) = (upload_on(&d, &stream, &x, [n]).unwrap(), DeviceBuffer::alloc(&d, &stream, n * 4).unwrap());
        scale(&k, stream.as_ref(), &x, &y, 0.5, n).unwrap();
        assert!(floats(&y, n).iter().enumerate().all(|(i, v)| *v == (i % 1000) as f32 + 3.0), "{n}");
    }
    let y = upload_on(&d, &stream, &[1f32; 4], [4]).unwrap();
    let pair = kernel(&d, "toy_pair");
    let mut bytes = [0u8; 32];
    bytes[..4].copy_from_slice(&2.5f32.to_le_bytes());
    bytes[4..8].copy_from_slice(&(-7i32).to_le_bytes());
    let good = [Arg::U64(y.address()), Arg::Bytes(&bytes), Arg::I32(3)];
    let launch = |k: &Kernel, c: LaunchConfig, args: &[Arg<'_>]| {
        // SAFETY: the one launch of these that is not refused writes three of y's four floats.
        unsafe { k.launch(&stream, &c, args) }
    };
    launch(&pair, LaunchConfig::linear(3, 32), &good).unwrap();
    assert_eq!(floats(&y, 4), [-3.5, -3.5, -3.5, 1.0]);

    let refused = |k: &Kernel, c: LaunchConfig, args: &[Arg<'_>], part: &str| {
        let e = launch(k, c, args).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Value, "{e}");
        assert!(e.to_string().starts_with(k.name()) && e.to_string().contains(part), "{part} in {e}");
    };
    refused(&pair, LaunchConfig::linear(3, 32), &good[..2], "takes 3 arguments and 2 were given");
    let short = [good[0], Arg::Bytes(&bytes[..31]), good[2]];
    refused(&pair, LaunchConfig::linear(3, 32), &short, "argument 1");
    refused(&pair, LaunchConfig::linear(3, 32), &[good[0], good[1], Arg::I64(3)], "argument 2");
    refused(&pair, LaunchConfig::new((0, 1, 1), (32, 1, 1)), &good, "at least one block");
    refused(&pair, LaunchConfig::new((1, 1, 1), (1025, 1, 1)), &good, "1 to 1024 threads");
    refused(&pair, LaunchConfig::linear(3, 32).shared(60 << 10), &good, "set_max_dynamic_shared");
    let e = launch(&pair, LaunchConfig::new((1, 70_000, 1), (32, 1, 1)), &good).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Cuda);
    assert!(e.to_string().contains("toy.cu:toy_pair") && e.to_string().contains("70000"), "{e}");
    let e = d.kernel(&spec(), "toy_none").unwrap_err().to_string();
    assert!(e.contains("no kernel `toy_none`") && e.contains("toy_scale"), "{e}");
}

#[test]
fn shared_memory_clusters_and_grid_barriers() {
    let Some(d) = device() else { return };
    let (stream, a) = (d.new_stream().unwrap(), d.attributes().unwrap());
    let out = upload_on(&d, &stream, &[0f32; 16], [16]).unwrap();
    let k = kernel(&d, "toy_shared");
    let most = a.shared_per_block_optin;
    let m = k.set_max_dynamic_shared(most + 4).unwrap_err().to_string();
    assert!(m.contains(&most.to_string()), "{m}");
    k.set_max_dynamic_shared(most).unwrap();
    let config = LaunchConfig::new((2, 1, 1), (128, 1, 1)).shared(most);
    // SAFETY: the kernel writes two of the sixteen floats.
    unsafe { k.launch(&stream, &config, &[out.address().into(), ((most / 4) as i32).into()]) }.unwrap();
    assert_eq!(floats(&out, 3), [(most / 4) as f32, (most / 4) as f32, 0.0]);

    if a.cooperative_launch {
        let k = kernel(&d, "toy_grid");
        let blocks = k.max_active_blocks(64, 0).unwrap() * a.sm_count;
        let n = blocks as usize;
        let counter = upload_on(&d, &stream, &[0i32], [1]).unwrap();
        let seen = upload_on(&d, &stream, &vec![0i32; n], [n]).unwrap();
        let args = [counter.address().into(), seen.address().into()];
        let config = |grid| LaunchConfig { cooperative: true, ..LaunchConfig::new((grid, 1, 1), (64, 1, 1)) };
        // SAFETY: the kernel adds to the counter and writes one integer a block.
        unsafe { k.launch(&stream, &config(blocks), &args) }.unwrap();
        let seen: Vec<i32> = download(&seen.view(Dtype::I32, [n]).unwrap()).unwrap();
        assert!(seen.iter().all(|s| *s == blocks as i32));
        // SAFETY: this launch is refused: its blocks cannot all run at once.
        let e = unsafe { k.launch(&stream, &config(blocks + 1), &args) }.unwrap_err().to_string();
        assert!(e.contains("toy_grid") && e.contains("cooperative"), "{e}");
    }
    if a.cluster_launch {
        let k = kernel(&d, "toy_cluster");
        let out = upload_on(&d, &stream, &[9i32; 16], [16]).unwrap();
        let cluster = |size| LaunchConfig { cluster: Some((size, 1, 1)), ..LaunchConfig::new((16, 1, 1), (32, 1, 1)) };
        assert!(k.max_active_clusters(&cluster(8)).unwrap() > 0);
        assert!(k.max_active_clusters(&LaunchConfig::default()).is_err());
        let ranks = |size: i32| (0..16).map(|b| b % size).collect::<Vec<i32>>();
        let mut sizes = vec![1, 2, 8];
        if k.allow_large_clusters().is_ok() && k.max_active_clusters(&cluster(16)).is_ok_and(|c| c > 0) {
            sizes.push(16);
        }
        for size in sizes {
            for programmatic in [false, true] {
                let config = LaunchConfig { programmatic, ..cluster(size) };
                // SAFETY: the kernel writes one integer a block.
                unsafe { k.launch(&stream, &config, &[out.address().into()]) }.unwrap();
            }
            assert_eq!(download::<i32>(&out.view(Dtype::I32, [16]).unwrap()).unwrap(), ranks(size as i32));
        }
    }
}

#[test]
fn streams_wait_for_events_and_clocks_run() {
    let Some(d) = device() else { return };
    let (s, t) = (d.new_stream().unwrap(), d.new_stream().unwrap());
    let (slow, total) = (kernel(&d, "toy_slow"), upload_on(&d, &s, &[0i64], [1]).unwrap());
    let (begin, end) = (Event::new(&d, true).unwrap(), Event::new(&d, true).unwrap());
    let mut seen = PinnedBuffer::alloc(&d, 8).unwrap();
    s.record(&begin).unwrap();
    let config = LaunchConfig::new((8, 1, 1), (32, 1, 1));
    // SAFETY: the kernel adds to the one integer; the side stream reads it after the event.
    unsafe { slow.launch(&s, &config, &[total.address().into(), 20_000_000i32.into()]) }.unwrap();
    s.record(&end).unwrap();
    assert!(!end.is_done().unwrap(), "a launch returns before its kernel ends");
    t.wait(&end).unwrap();
    seen.receive(&total.view(Dtype::I64, [1]).unwrap(), &t).unwrap();
    assert_eq!(seen.as_slice::<i64>().unwrap(), [8]);
    let ms = begin.elapsed_ms(&end).unwrap();
    println!("the slow kernel ran {ms} ms");
    assert!(ms > 1.0 && end.is_done().unwrap());
    let plain = Event::new(&d, false).unwrap();
    assert!(begin.elapsed_ms(&plain).unwrap_err().to_string().contains("without timing"));
    // A dropped stream's handle is given out again, and buffers of it can still be freed.
    let raw = s.as_ref();
    drop(s);
    let handles: Vec<_> = (0..8).map(|_| d.new_stream().unwrap()).collect();
    drop(total);
    raw.synchronize(&d).unwrap();
    drop(handles);
}

#[test]
fn graphs_replay_what_was_captured() {
    let Some(d) = device() else { return };
    let stream = d.new_stream().unwrap();
    let (k, n) = (kernel(&d, "toy_scale"), 1000);
    let x = upload_on(&d, &stream, &vec![1f32; n], [n]).unwrap();
    let y = upload_on(&d, &stream, &vec![0f32; n], [n]).unwrap();
    // x <- 2 * 0.5 * x + 3, twice, by way of y.
    let work = || {
        scale(&k, stream.as_ref(), &x, &y, 0.5, n)?;
        scale(&k, stream.as_ref(), &y, &x, 0.5, n)
    };
    // SAFETY: both buffers outlive the graph.
    let graph = unsafe { Graph::capture(&stream, work) }.unwrap();
    assert_eq!(graph.nodes(), 2);
    assert!(floats(&x, n).iter().all(|v| *v == 1.0), "capturing runs nothing");
    for _ in 0..10 {
        graph.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(floats(&x, n).iter().all(|v| *v == 61.0));

    // Errors and panics inside end the capture; the stream works on.
    // SAFETY: nothing is captured.
    let e = unsafe { Graph::capture(&stream, || Err(Error::value("from inside"))) }.err().unwrap();
    assert_eq!(e.to_string(), "from inside");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: nothing is captured.
        unsafe { Graph::capture(&stream, || panic!("inside")) }.map(|_| ())
    }));
    assert!(caught.is_err());
    // What cannot be captured is told, and a buffer that is dropped inside is freed later.
    let inside = DeviceBuffer::alloc(&d, &stream, 1 << 20).unwrap();
    // SAFETY: the buffers outlive the graph, which does not use the dropped one.
    let graph = unsafe {
        Graph::capture(&stream, || {
            let m = DeviceBuffer::alloc(&d, &stream, 64).err().unwrap().to_string();
            assert!(m.contains("captured"), "{m}");
            drop(inside);
            work()
        })
    }
    .unwrap();
    graph.launch(&stream).unwrap();
    work().unwrap();
    drop(DeviceBuffer::alloc(&d, &stream, 64).unwrap());
    stream.synchronize().unwrap();
    assert!(floats(&x, n).iter().all(|v| *v == 73.0));
    // What a plan needs may be had meanwhile, beside the graph, by who says so.
    let (mut kept, other) = (None, d.new_stream().unwrap());
    // SAFETY: the buffers outlive the graph.
    let graph = unsafe {
        Graph::capture(&stream, || {
            let outside = d.outside_capture()?;
            let z = upload_on(&d, &other, &vec![7f32; n], [n])?;
            let mut fresh = spec();
            fresh.constants = vec![("kShift", 5.into())];
            kept = Some((z, d.kernel(&fresh, "toy_scale")?));
            other.synchronize()?;
            drop(outside);
            work()
        })
    }
    .unwrap();
    assert_eq!(graph.nodes(), 2);
    assert!(floats(&kept.unwrap().0, n).iter().all(|v| *v == 7.0));
    drop(graph);
    // SAFETY: nothing can be replayed.
    let e = unsafe { Graph::capture(&stream, || stream.synchronize()) }.err().unwrap();
    assert_eq!(e.kind(), &ErrorKind::Cuda);
    work().unwrap();
    stream.synchronize().unwrap();
    assert!(floats(&x, n).iter().all(|v| *v == 79.0));
}

#[test]
fn users_compile_their_own() {
    let Some(d) = device() else { return };
    let source = r#"
        #include "mine.cuh"
        extern "C" __global__ void mine(float* x /* [n] */, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] = cube(x[i]) + kBias;
        }"#;
    let user = UserKernel::new("mine.cu", source)
        .header("mine.cuh", "__device__ float cube(float x) { return x * x * x; }")
        .constant("kBias", 0.5f32);
    let k = user.compile(&d, "mine").unwrap();
    let stream = d.new_stream().unwrap();
    let x = upload_on(&d, &stream, &[1f32, 2.0, 3.0], [3]).unwrap();
    // SAFETY: x holds three floats, which nobody else uses.
    unsafe { k.launch(&stream, &LaunchConfig::linear(3, 32), &[x.address().into(), 3i32.into()]) }.unwrap();
    assert_eq!(floats(&x, 3), [1.5, 8.5, 27.5]);
    let before = cache::global().compiled();
    user.compile(&d, "mine").unwrap();
    assert_eq!(cache::global().compiled(), before);
    let e = d.compile_user("extern \"C\" __global__ void k() {\n  oops;\n}", "k").unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Compile { .. }) && e.to_string().contains("user.cu(2)"), "{e}");
    let e = d.compile_user("__global__ void k() {}", "k").unwrap_err();
    assert!(e.to_string().contains("extern \"C\""), "{e}");
    let k = d.compile_user("extern \"C\" __global__ void k() {}", "k").unwrap();
    // SAFETY: the kernel does nothing.
    unsafe { k.launch(&stream, &LaunchConfig::default(), &[]) }.unwrap();
    stream.synchronize().unwrap();
}

/// First use and use from the disk cache, each in a process of its own, with the driver's start left out.
#[test]
fn first_use_and_use_from_cache_are_quick() {
    const TEST: &str = "first_use_and_use_from_cache_are_quick";
    let Some(d) = device() else { return };
    if is_child() {
        d.synchronize().unwrap();
        let started = Instant::now();
        kernel(&d, "toy_scale");
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let started = Instant::now();
        for _ in 0..50 {
            kernel(&d, "toy_scale");
        }
        let again_us = started.elapsed().as_secs_f64() * 1e6 / 50.0;
        println!("{:?} ms={ms} again_us={again_us:.1}", cache::global().counts());
        return;
    }
    let folder = std::env::temp_dir().join(format!("chronaxie-gpu-test-{}", std::process::id()));
    let run = |part: &str, limit: f64| {
        let out = child(TEST, &[("CHRONAXIE_CACHE_DIR", folder.to_str().unwrap()), ("CHRONAXIE_PACK", "")]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && text.contains(part), "{text}{}", String::from_utf8_lossy(&out.stderr));
        let ms: f64 = text.split("ms=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        println!("{part}: {ms:.2} ms");
        assert!(ms < limit, "{ms} ms, and {limit} are allowed");
    };
    run("compiled: 1, from_disk: 0", 1500.0);
    run("compiled: 0, from_disk: 1", 20.0);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_failing_kernel_is_named_under_sync() {
    const TEST: &str = "a_failing_kernel_is_named_under_sync";
    let Some(d) = device() else { return };
    if is_child() {
        let k = kernel(&d, "toy_fault");
        // SAFETY: none: the kernel faults, which is the test. The process ends without using the device again.
        let e = unsafe { k.launch(d.default_stream(), &LaunchConfig::default(), &[Arg::U64(16)]) }.unwrap_err();
        println!("told: {e}");
        return;
    }
    let out = child(TEST, &[("CHRONAXIE_SYNC", "1")]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("told: tests/kernels/toy.cu:toy_fault: "), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_is_refused() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }
    const TEST: &str = "a_forked_child_is_refused";
    let Some(d) = device() else { return };
    // In a process of its own, where no other test's thread holds a lock at the fork.
    if !is_child() {
        let out = child(TEST, &[]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let buffer = upload(&d, &[1f32], [1]).unwrap();
    // SAFETY: the child only asks the library and ends.
    let pid = unsafe { fork() };
    if pid == 0 {
        let told = |r: Result<()>| r.is_err_and(|e| e.to_string().contains("it was forked from process"));
        let all = told(CudaDevice::open(0).map(|_| ()))
            && told(CudaDevice::count().map(|_| ()))
            && told(d.synchronize())
            && told(d.kernel(&spec(), "toy_scale").map(|_| ()))
            && told(DeviceBuffer::alloc(&d, StreamRef::LEGACY, 64).map(|_| ()));
        drop(buffer);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { _exit(if all { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: pid is the child just made, and the status a live integer.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child was not refused");
    assert_eq!(floats(&buffer, 1), [1.0], "the parent's memory is untouched");
}

#[test]
fn threads_share_a_device_and_its_kernels() {
    let Some(d) = device() else { return };
    std::thread::scope(|s| {
        for thread in 0..8 {
            let d = &*d;
            s.spawn(move || {
                let (stream, k, n) = (d.new_stream().unwrap(), kernel(d, "toy_scale"), 10_000 + thread);
                for round in 0..20 {
                    let x = upload_on(d, &stream, &vec![thread as f32; n], [n]).unwrap();
                    let y = DeviceBuffer::alloc(d, &stream, n * 4).unwrap();
                    scale(&k, stream.as_ref(), &x, &y, 1.0, n).unwrap();
                    stream.synchronize().unwrap();
                    assert!(floats(&y, n).iter().all(|v| *v == 2.0 * thread as f32 + 3.0), "round {round}");
                }
            });
        }
    });
}

#[test]
fn boxes_of_a_tensor_come_swizzled_with_zeros_outside() {
    let Some(d) = device() else { return };
    let of = |address, t| Boxes { address, sizes: [72, 70, 2, 1], strides: [t, 70 * t, 16], rows: 64 };
    for (address, t) in [(8, 160), (0, 150), (0, 1 << 40)] {
        let e = TensorMap::new(&d, &of(address, t)).unwrap_err();
        assert!(*e.kind() == ErrorKind::Shape && e.to_string().contains("multiples of 16"), "{e}");
    }
    if d.props().compute_capability < (9, 0) {
        return println!("skipped: no copy engine for boxes");
    }
    let x: Vec<i32> = (0..2 * 70 * 40).collect();
    let (x, y) = (upload(&d, &x, [x.len()]).unwrap(), upload(&d, &[-1; 2048], [2048]).unwrap());
    let source = KernelSource::embedded("tests/kernels/box.cu", include_str!("kernels/box.cu"));
    let s = Specialisation::new(source, &["toy_box"]);
    let map = TensorMap::new(&d, &of(x.address(), 160)).unwrap();
    let args = [Arg::Bytes(map.bytes()), Arg::U64(y.address()), Arg::I32(64), Arg::I32(32), Arg::I32(1)];
    // SAFETY: the buffers hold what the kernel reads and writes.
    unsafe {
        d.kernel(&s, "toy_box").unwrap().launch(StreamRef::LEGACY, &LaunchConfig::new((1, 1, 1), (64, 1, 1)), &args)
    }
    .unwrap();
    let got: Vec<i32> = download(&y.view(Dtype::I32, [2048]).unwrap()).unwrap();
    for (at, got) in got.iter().enumerate() {
        let (row, pair) = (at / 32, (at % 32 / 4) ^ (at / 32 % 8));
        let want = if row < 38 && pair == 0 { (70 + 32 + row as i32) * 40 + 32 + at as i32 % 4 } else { 0 };
        assert_eq!(*got, want, "row {row}, piece {pair}");
    }
}
