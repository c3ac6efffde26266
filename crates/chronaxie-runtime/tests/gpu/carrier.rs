//! Pinned memory, and bytes between files and device memory by way of it.

use super::{child, device, is_child, kernel, scale};
use chronaxie_runtime::cuda::{
    Arg, Carried, Carrier, CudaDevice, DeviceBuffer, Event, Graph, LaunchConfig, PinnedBuffer, Stream, download,
    fill_bytes, upload_on,
};
use chronaxie_runtime::{Dtype, ErrorKind};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn pinned_memory_waits_for_its_copies() {
    let Some(d) = device() else { return };
    let n = 4 << 20;
    let (s, t) = (d.new_stream().unwrap(), d.new_stream().unwrap());
    let mut host = PinnedBuffer::alloc(&d, n * 4).unwrap();
    assert!(host.as_slice::<f32>().unwrap().iter().all(|v| *v == 0.0));
    let (mut a, b) = (DeviceBuffer::alloc(&d, &s, n * 4).unwrap(), DeviceBuffer::alloc(&d, &s, n * 4).unwrap());
    let (k, ready) = (kernel(&d, "toy_scale"), Event::new(&d, false).unwrap());
    for round in 0..5 {
        host.as_mut_slice::<f32>().unwrap().iter_mut().enumerate().for_each(|(i, v)| *v = (i % 97 + round) as f32);
        host.send(&mut a.view_mut(Dtype::F32, [n]).unwrap(), &s).unwrap();
        scale(&k, s.as_ref(), &a, &b, 0.5, n).unwrap();
        s.record(&ready).unwrap();
        t.wait(&ready).unwrap();
        host.receive(&b.view(Dtype::F32, [n]).unwrap(), &t).unwrap();
        let back = host.as_slice::<f32>().unwrap();
        assert!(back.iter().enumerate().all(|(i, v)| *v == (i % 97 + round) as f32 + 3.0), "round {round}");
        b.used_on(&t).unwrap();
    }
    let mut small = PinnedBuffer::alloc(&d, 6).unwrap();
    assert!(small.as_slice::<f32>().is_err() && small.as_mut_slice::<u8>().unwrap().len() == 6);
    assert!(small.send(&mut a.bytes_view_mut(), &s).unwrap_err().to_string().contains("6 bytes"));
    PinnedBuffer::alloc(&d, 0).unwrap().as_slice::<f32>().unwrap();
    s.synchronize().unwrap();
}

/// A file that is removed with the test.
struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("chronaxie-carrier-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        Self { path, file }
    }
    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Bytes of which no piece is like another.
fn noise(n: usize, seed: u32) -> Vec<u8> {
    let mut v = seed.wrapping_mul(2_654_435_769) | 1;
    (0..n)
        .map(|_| {
            v = v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (v >> 24) as u8
        })
        .collect()
}

fn on_device(d: &Arc<CudaDevice>, s: &Stream, bytes: &[u8]) -> DeviceBuffer {
    upload_on(d, s, bytes, [bytes.len()]).unwrap()
}

/// An event that has come once the stream has done what is on it now.
fn mark(d: &Arc<CudaDevice>, s: &Stream) -> Event {
    let e = Event::new(d, false).unwrap();
    s.record(&e).unwrap();
    e
}

fn host(buffer: &DeviceBuffer) -> Vec<u8> {
    download(&buffer.bytes_view()).unwrap()
}

/// Saves all of `bytes` and loads it again.
fn round_trip(d: &Arc<CudaDevice>, carrier: &mut Carrier, name: &str, bytes: &[u8]) {
    let (s, f, n) = (d.new_stream().unwrap(), Scratch::new(name, b""), bytes.len());
    let source = on_device(d, &s, bytes);
    carrier.save(&source, 0, n, &mark(d, &s), &f.file, &f.path, 0).unwrap();
    assert!(f.bytes() == bytes, "{name}: what was saved differs");
    let mut target = DeviceBuffer::alloc(d, &s, n).unwrap();
    carrier.load(&f.file, &f.path, 0, &mut target, 0, n).unwrap();
    assert!(host(&target) == bytes, "{name}: what was loaded differs");
}

#[test]
fn bytes_go_to_files_and_come_back() {
    let Some(d) = device() else { return };
    const PIECE: usize = 4096;
    let s = d.new_stream().unwrap();
    for count in [1, 3] {
        let mut carrier = Carrier::with_buffers(&d, count, PIECE).unwrap();
        for (round, n) in [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 7 * PIECE + 13].into_iter().enumerate() {
            for (at, offset) in [(0, 0), (1, 3), (3001, 5 * PIECE), (256, PIECE - 1)] {
                let (room, bytes) = (at + n + 77, noise(at + n + 77, round as u32));
                let f = Scratch::new("round", &vec![0xaa; offset + n + 99]);
                let source = on_device(&d, &s, &bytes);
                carrier.save(&source, at, n, &mark(&d, &s), &f.file, &f.path, offset as u64).unwrap();
                let mut want = vec![0xaa; offset + n + 99];
                want[offset..offset + n].copy_from_slice(&bytes[at..at + n]);
                assert!(f.bytes() == want, "{count} buffers, {n} bytes from byte {at} to byte {offset}");

                let mut target = DeviceBuffer::alloc(&d, &s, room).unwrap();
                // The stream of the target has this before it.
                fill_bytes(&mut target.bytes_view_mut(), 0x55, &s).unwrap();
                let how = carrier.load(&f.file, &f.path, offset as u64, &mut target, at, n).unwrap();
                let mut want = vec![0x55; room];
                want[at..at + n].copy_from_slice(&bytes[at..at + n]);
                assert!(host(&target) == want, "{count} buffers, {n} bytes from byte {offset} to byte {at}");
                // By cuFile on a machine that has it, but for nothing.
                assert!(how == Carried::Pinned || n > 0);
            }
        }
    }
}

#[test]
fn a_carrier_as_it_is_made_carries_many_pieces() {
    let Some(d) = device() else { return };
    let mut carrier = Carrier::new(&d).unwrap();
    assert!(format!("{carrier:?}").contains("12 buffers of 8388608 bytes"), "{carrier:?}");
    round_trip(&d, &mut carrier, "large", &noise((150 << 20) + 4321, 3));
}

#[test]
fn what_is_saved_is_what_came_before_the_event() {
    let Some(d) = device() else { return };
    let s = d.new_stream().unwrap();
    let (slow, total) = (kernel(&d, "toy_slow"), on_device(&d, &s, &[0; 8]));
    let mut carrier = Carrier::with_buffers(&d, 2, 1 << 16).unwrap();
    let mut source = on_device(&d, &s, &vec![1; 300_000]);
    s.synchronize().unwrap();
    let rounds = if emulated(&d) { 20_000i32 } else { 100_000_000 };
    for value in [2, 3] {
        // SAFETY: the kernel adds to the one integer.
        unsafe { slow.launch(&s, &LaunchConfig::new((1, 1, 1), (32, 1, 1)), &[total.address().into(), rounds.into()]) }
            .unwrap();
        fill_bytes(&mut source.bytes_view_mut(), value, &s).unwrap();
        let f = Scratch::new("ready", b"");
        carrier.save(&source, 0, 300_000, &mark(&d, &s), &f.file, &f.path, 0).unwrap();
        assert!(f.bytes() == vec![value; 300_000], "it was saved before the event had come");
    }
    // An event that was never recorded has come.
    let f = Scratch::new("ready", b"");
    carrier.save(&source, 0, 5, &Event::new(&d, false).unwrap(), &f.file, &f.path, 0).unwrap();
    assert_eq!(f.bytes(), [3; 5]);
}

fn emulated(d: &Arc<CudaDevice>) -> bool {
    d.name().starts_with("emulated")
}

/// Whether a launch on the emulated device returns when its kernel has ended.
fn early() -> bool {
    std::env::var("CHRONAXIE_EMULATED_STREAMS").is_ok_and(|s| s == "early")
}

/// Every multiprocessor is taken by a kernel that ends when the host says so: files are written and read meanwhile.
#[test]
fn a_kernel_that_fills_the_device_is_not_waited_for() {
    const HOLD: &str = r#"extern "C" __global__ void __launch_bounds__(1024) hold(unsigned* word /* [2]: begun, end */) {
  extern __shared__ char room[];
  if (threadIdx.x == 0) {
    atomicAdd_system(&word[0], 1u);
    while (*(volatile unsigned*)&word[1] == 0) {
    }
    room[0] = 1;
  }
}"#;
    let Some(d) = device() else { return };
    if early() {
        return;
    }
    let (s, t) = (d.new_stream().unwrap(), d.new_stream().unwrap());
    let hold = d.compile_user(HOLD, "hold").unwrap();
    let a = d.attributes().unwrap();
    let bytes = noise(1_000_003, 9);
    let (source, mut target) = (on_device(&d, &s, &bytes), DeviceBuffer::alloc(&d, &s, bytes.len()).unwrap());
    let ready = mark(&d, &s);
    let f = Scratch::new("beside", b"");
    let mut carrier = Carrier::with_buffers(&d, 5, 1 << 17).unwrap();
    let mut word = PinnedBuffer::alloc(&d, 8).unwrap();
    let address = word.address();
    let words = word.as_mut_slice::<i32>().unwrap();
    // SAFETY: two aligned integers that live as long as `words`, and that kernel and host change as atomics only.
    let [begun, end] = [0, 1].map(|i| unsafe { AtomicU32::from_ptr(words.as_mut_ptr().add(i).cast()) });
    // One block a multiprocessor, and no room for another kernel beside it.
    let shared = a.shared_per_block_optin;
    hold.set_max_dynamic_shared(shared).unwrap();
    let blocks = if emulated(&d) { 4 } else { a.sm_count };
    let config = LaunchConfig { cooperative: true, ..LaunchConfig::new((blocks, 1, 1), (1024, 1, 1)) }.shared(shared);
    // SAFETY: the kernel reads and writes two integers of pinned memory.
    unsafe { hold.launch(&t, &config, &[Arg::U64(address)]) }.unwrap();
    let since = Instant::now();
    // The emulated device begins when somebody waits for it.
    while !emulated(&d) && begun.load(Ordering::SeqCst) < blocks {
        assert!(since.elapsed() < Duration::from_secs(20), "the kernel does not begin");
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        // Ends the kernel, and with it a wait for it, where the carrier does wait.
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let watch = scope.spawn(move || {
            let timely = wait.recv_timeout(Duration::from_secs(20)).is_ok();
            end.store(1, Ordering::SeqCst);
            timely
        });
        carrier.save(&source, 0, bytes.len(), &ready, &f.file, &f.path, 0).unwrap();
        carrier.load(&f.file, &f.path, 0, &mut target, 0, bytes.len()).unwrap();
        let _ = done.send(());
        assert!(watch.join().unwrap(), "the carrier waited for the kernel");
    });
    t.synchronize().unwrap();
    assert!(f.bytes() == bytes && host(&target) == bytes);
}

#[test]
fn a_file_that_is_too_short_is_a_sentence() {
    let Some(d) = device() else { return };
    let s = d.new_stream().unwrap();
    let mut carrier = Carrier::with_buffers(&d, 3, 1000).unwrap();
    let f = Scratch::new("short", &noise(10_000, 1));
    let mut target = on_device(&d, &s, &[0x55; 20_000]);
    for (offset, bytes) in [(0, 10_001), (9_999, 2), (10_000, 1), (10_001, 5_000), (123_456, 1)] {
        let e = carrier.load(&f.file, &f.path, offset, &mut target, 7, bytes).unwrap_err();
        let m = e.to_string();
        assert_eq!(e.kind(), &ErrorKind::Io, "{m}");
        let asked = format!("bytes {offset} to {} were asked for", offset + bytes as u64);
        assert!(m.contains("short") && m.contains("ends at byte 10000") && m.contains(&asked), "{m}");
    }
    assert!(host(&target) == [0x55; 20_000], "nothing is read of a file that is known to be too short");
    carrier.load(&f.file, &f.path, 0, &mut target, 7, 10_000).unwrap();
    assert!(host(&target)[7..10_007] == noise(10_000, 1));
    // Of what is no regular file, the length is not known before.
    #[cfg(unix)]
    {
        let path = Path::new("/dev/null");
        let e = carrier.load(&File::open(path).unwrap(), path, 5, &mut target, 0, 9_000).unwrap_err();
        assert!(e.kind() == &ErrorKind::Io && e.to_string().contains("bytes 5 to 9005"), "{e}");
        // A file that cannot be read.
        let path = std::env::temp_dir();
        let e = carrier.load(&File::open(&path).unwrap(), &path, 0, &mut target, 0, 9_000).unwrap_err();
        assert!(e.kind() == &ErrorKind::Io && e.to_string().contains("cannot read"), "{e}");
    }
    round_trip(&d, &mut carrier, "after", &noise(9_000, 4));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_it_and_the_carrier_goes_on() {
    let Some(d) = device() else { return };
    let s = d.new_stream().unwrap();
    let source = on_device(&d, &s, &noise(300_000, 1));
    let mut carrier = Carrier::with_buffers(&d, 6, 1000).unwrap();
    let path = Path::new("/dev/full");
    let full = File::options().write(true).open(path).unwrap();
    for round in 0..5 {
        let e = carrier.save(&source, 0, 300_000, &mark(&d, &s), &full, path, 0).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Io);
        assert!(e.to_string().contains("cannot write /dev/full: No space left"), "{e}");
        assert!(format!("{carrier:?}").contains("6 buffers"), "a buffer was lost: {carrier:?}");
        round_trip(&d, &mut carrier, "full", &noise(20_000, round));
    }
    // A file that was opened to be read.
    let f = Scratch::new("unwritable", b"");
    let e = carrier.save(&source, 0, 9_000, &mark(&d, &s), &File::open(&f.path).unwrap(), &f.path, 0).unwrap_err();
    assert!(e.kind() == &ErrorKind::Io && e.to_string().contains("unwritable"), "{e}");
}

#[test]
fn two_carriers_work_at_once() {
    fn may_change_threads<T: Send>(value: T) -> T {
        value
    }
    let Some(d) = device() else { return };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let d = &*d;
            scope.spawn(move || {
                let mut carrier = may_change_threads(Carrier::with_buffers(d, 3, 5_000).unwrap());
                for round in 0..10 {
                    round_trip(
                        d,
                        &mut carrier,
                        &format!("pair-{thread}"),
                        &noise(60_000 + round, 2 * round as u32 + thread),
                    );
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_carried_is_refused() {
    let Some(d) = device() else { return };
    let s = d.new_stream().unwrap();
    for (count, bytes) in [(0, 4096), (3, 0)] {
        assert_eq!(Carrier::with_buffers(&d, count, bytes).unwrap_err().kind(), &ErrorKind::Value);
    }
    let mut carrier = Carrier::with_buffers(&d, 2, 4096).unwrap();
    let (mut x, f, ready) = (on_device(&d, &s, &[1; 100]), Scratch::new("refused", &[2; 200]), mark(&d, &s));
    for (at, bytes) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 2), (2, usize::MAX)] {
        for e in [
            carrier.save(&x, at, bytes, &ready, &f.file, &f.path, 0).unwrap_err(),
            carrier.load(&f.file, &f.path, 0, &mut x, at, bytes).unwrap_err(),
        ] {
            let values = format!("{bytes} bytes from byte {at} on of a buffer of 100 bytes");
            assert!(e.kind() == &ErrorKind::Shape && e.to_string().contains(&values), "{e}");
        }
    }
    for offset in [u64::MAX, i64::MAX as u64 - 50] {
        let e = carrier.save(&x, 0, 100, &ready, &f.file, &f.path, offset).unwrap_err();
        assert!(e.kind() == &ErrorKind::Value && e.to_string().contains(&offset.to_string()), "{e}");
    }
    assert_eq!(f.bytes(), [2; 200]);
    assert_eq!(host(&x), [1; 100]);
    if CudaDevice::count().unwrap() > 1 {
        let other = CudaDevice::open(1).unwrap();
        let t = other.new_stream().unwrap();
        let (mut y, later) = (on_device(&other, &t, &[1; 100]), mark(&other, &t));
        for e in [
            carrier.save(&y, 0, 1, &ready, &f.file, &f.path, 0).unwrap_err(),
            carrier.save(&x, 0, 1, &later, &f.file, &f.path, 0).unwrap_err(),
            carrier.load(&f.file, &f.path, 0, &mut y, 0, 1).unwrap_err(),
        ] {
            assert!(e.kind() == &ErrorKind::Device && e.to_string().contains("cuda:1"), "{e}");
        }
    }
}

#[test]
fn a_capture_is_left_alone() {
    let Some(d) = device() else { return };
    let (s, t) = (d.new_stream().unwrap(), d.new_stream().unwrap());
    let bytes = noise(30_000, 5);
    let (source, ready) = (on_device(&d, &s, &bytes), mark(&d, &s));
    let (mut target, mut captured) = (on_device(&d, &s, &[0; 30_000]), on_device(&d, &t, &[0x55; 30_000]));
    d.synchronize().unwrap();
    let mut carrier = Carrier::with_buffers(&d, 3, 4096).unwrap();
    let f = Scratch::new("capture", b"");
    let work = || {
        fill_bytes(&mut captured.bytes_view_mut(), 7, &t)?;
        carrier.save(&source, 0, 30_000, &ready, &f.file, &f.path, 0)?;
        carrier.load(&f.file, &f.path, 0, &mut target, 0, 30_000)?;
        let e = carrier.load(&f.file, &f.path, 0, &mut captured, 0, 30_000).unwrap_err();
        assert!(e.kind() == &ErrorKind::Cuda && e.to_string().contains("is being captured"), "{e}");
        Ok(())
    };
    // SAFETY: what is filled lives until the graph has run.
    let graph = unsafe { Graph::capture(&t, work) }.unwrap();
    assert!(f.bytes() == bytes && host(&target) == bytes && host(&captured) == [0x55; 30_000]);
    assert_eq!(graph.nodes(), 1);
    graph.launch(&t).unwrap();
    t.synchronize().unwrap();
    assert!(host(&captured) == [7; 30_000]);
}

/// The emulated device can be lost: with a driver that says so, and with one that says nothing.
#[test]
fn a_lost_device_is_an_error_and_no_hang() {
    const TEST: &str = "carrier::a_lost_device_is_an_error_and_no_hang";
    let Some(d) = device() else { return };
    if !emulated(&d) || early() {
        return println!("skipped: {} is no emulated device, or does everything at once", d.name());
    }
    if !is_child() {
        drop(d);
        for (lost, kind) in [("0:toy_slow:1", "Cuda"), ("0:toy_slow:1:silent", "Lost")] {
            let since = Instant::now();
            let out = child(TEST, &[("CHRONAXIE_EMULATED_LOST", lost)]);
            let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success() && text.matches(&format!("found: {kind}:")).count() == 4, "{lost}: {text}");
            assert!(since.elapsed() < Duration::from_secs(30), "{lost}: {text}");
        }
        return;
    }
    let s = d.new_stream().unwrap();
    let f = Scratch::new("lost", &noise(50_000, 1));
    let mut carrier = Carrier::with_buffers(&d, 3, 4096).unwrap();
    carrier.set_patience(Duration::from_millis(100));
    let mut x = on_device(&d, &s, &noise(50_000, 2));
    let (never, ready) = (Event::new(&d, false).unwrap(), Event::new(&d, false).unwrap());
    let (slow, total) = (kernel(&d, "toy_slow"), on_device(&d, &s, &[0; 8]));
    // SAFETY: the kernel adds to the one integer.
    let launched = unsafe { slow.launch(&s, &LaunchConfig::default(), &[total.address().into(), 1i32.into()]) };
    let recorded = launched.and_then(|()| s.record(&ready));
    let found = |e: &chronaxie_runtime::Error| println!("found: {:?}: {e}", e.kind());
    // What precedes, a copy itself, a copy of an earlier call, the stream of a target.
    match recorded {
        Ok(()) => found(&carrier.save(&x, 0, 50_000, &ready, &f.file, &f.path, 0).unwrap_err()),
        Err(e) => found(&e),
    }
    for _ in 0..2 {
        found(&carrier.save(&x, 0, 50_000, &never, &f.file, &f.path, 0).unwrap_err());
    }
    found(&carrier.load(&f.file, &f.path, 0, &mut x, 0, 50_000).unwrap_err());
    assert!(f.bytes() == noise(50_000, 1), "nothing was written");
}

/// Loads by cuFile in a process of its own, since one process has one cuFile: that of the emulated GPU, told what to refuse, or a real one.
#[cfg(target_os = "linux")]
#[test]
fn files_come_by_cufile_where_it_takes_them() {
    const TEST: &str = "carrier::files_come_by_cufile_where_it_takes_them";
    let Some(d) = device() else { return };
    if is_child() {
        return load_three_times(&d);
    }
    let emulated = emulated(&d);
    drop(d);
    let run = |cufile: &str, refused: &str| {
        let set = [("CHRONAXIE_CUFILE", cufile), ("CHRONAXIE_EMULATED_CUFILE", refused), ("CHRONAXIE_LOG", "info")];
        let out = child(TEST, &set);
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{cufile} {refused}: {text}");
        text
    };
    let has = |text: &str, part: &str, times: usize| assert_eq!(text.matches(part).count(), times, "{part} in {text}");
    let text = run("0", "");
    has(&text, "came: Pinned", 3);
    has(&text, "not by cuFile: CHRONAXIE_CUFILE=0", 1);
    let text = run("/no/such/folder", "");
    has(&text, "came: Pinned", 3);
    has(
        &text,
        "warning: files are read through pinned memory and not by cuFile: CHRONAXIE_CUFILE names /no/such/folder",
        1,
    );
    if !emulated {
        // Whether it serves this machine is not known; the bytes are right either way.
        return println!("with a real cuFile: {}", run("1", ""));
    }
    let stand_in = Path::new(&std::env::var_os("CHRONAXIE_NVRTC").unwrap()).with_file_name("cufile");
    let stand_in = stand_in.to_str().unwrap();
    // 50 MB in pieces of 16 MiB, twice, and 5 bytes.
    let text = run(stand_in, "");
    has(&text, "came: CuFile", 3);
    has(&text, "counts: 1 opened, 3 registered, 3 ended, 7 reads", 1);
    has(&text, "not by cuFile", 0);
    has(&run(stand_in, "short"), "came: CuFile", 3);
    for (refused, why, reads) in [
        ("open", "nvidia-fs is not loaded (cuFile error 5001)", "0 opened, 0 registered, 0 ended, 0 reads"),
        ("register", "does not serve this file (cuFile error 5008)", "1 opened, 0 registered, 0 ended, 0 reads"),
        ("read=1", "cuFileRead failed: GPUDirect Storage does not serve this file", "1 opened, 3 registered, 3 ended"),
        ("error=1", "cuFileRead failed: Input/output error", "1 opened, 3 registered, 3 ended"),
    ] {
        let text = run(stand_in, refused);
        has(&text, "came: Pinned", 3);
        has(&text, "not by cuFile", 1);
        has(&text, why, 1);
        has(&text, reads, 1);
    }
    // After some pieces have come.
    let text = run(stand_in, "read=3");
    has(&text, "came: Pinned", 3);
    has(&text, "1 opened, 3 registered, 3 ended", 1);
}

#[cfg(target_os = "linux")]
fn load_three_times(d: &Arc<CudaDevice>) {
    let s = d.new_stream().unwrap();
    let (n, bytes) = (50_000_000, noise(50_001_234, 7));
    let f = Scratch::new("cufile", &bytes);
    let mut carrier = Carrier::with_buffers(d, 3, 1 << 20).unwrap();
    let mut target = DeviceBuffer::alloc(d, &s, n + 500).unwrap();
    for (offset, at, n) in [(0, 0, n), (1234, 500, n), (77, 3, 5)] {
        fill_bytes(&mut target.bytes_view_mut(), 0x55, &s).unwrap();
        let how = carrier.load(&f.file, &f.path, offset as u64, &mut target, at, n).unwrap();
        let got = host(&target);
        assert!(got[at..at + n] == bytes[offset..offset + n], "{n} bytes from byte {offset} to byte {at} differ");
        assert!(got[..at].iter().chain(&got[at + n..]).all(|b| *b == 0x55), "the rest was touched");
        println!("came: {how:?}");
    }
    let Some(stand_in) = std::env::var_os("CHRONAXIE_CUFILE").filter(|v| Path::new(v).is_dir()) else { return };
    // SAFETY: the stand-in has been opened already, or has no initialisers; the function has this signature.
    let counts = unsafe {
        let library = libloading::Library::new(Path::new(&stand_in).join("libcufile.so.0")).unwrap();
        let ask = library.get::<unsafe extern "C" fn(*mut u64)>(b"emulated_cufile_counts").unwrap();
        let mut counts = [0u64; 4];
        ask(counts.as_mut_ptr());
        counts
    };
    let [opened, registered, ended, reads] = counts;
    println!("counts: {opened} opened, {registered} registered, {ended} ended, {reads} reads");
    // What is no regular file, and ends at once.
    let null = Path::new("/dev/null");
    let e = carrier.load(&File::open(null).unwrap(), null, 5, &mut target, 0, 100).unwrap_err();
    assert!(e.kind() == &ErrorKind::Io && e.to_string().contains("ends at byte 5, and bytes 5 to 105"), "{e}");
}
