//! Whether the emulated GPU (tests/emulated-gpu) finds what it is there to find: defects that are planted here.
//!
//! `scripts/emulated.sh` runs them; elsewhere they print that they were skipped.

#![allow(unsafe_code)]
#![cfg(target_os = "linux")]

use chronaxie_runtime::cuda::{
    Arg, CudaDevice, DeviceBuffer, Event, KernelSource, LaunchConfig, PinnedBuffer, Specialisation, copy_to_host,
    download, fill_bytes, upload_on,
};
use chronaxie_runtime::{Dtype, Error, Result, ViewMut};
use std::process::Command;
use std::sync::Arc;

fn device() -> Option<Arc<CudaDevice>> {
    match CudaDevice::open(0) {
        Ok(d) if d.name().starts_with("emulated") => Some(d),
        Ok(d) => {
            println!("skipped: {} is no emulated device", d.name());
            None
        }
        Err(e) if std::env::var_os("CHRONAXIE_REQUIRE_GPU").is_some_and(|v| v == "1") => panic!("{e}"),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

const ENTRIES: &[&str] = &[
    "no_barrier",
    "no_warp_barrier",
    "reads_beyond",
    "writes_before",
    "shared_beyond",
    "variable_beyond",
    "beyond_bounds",
    "misaligned",
    "not_written",
    "different_barriers",
    "missing_lane",
    "waits_for_ever",
    "no_copy_wait",
    "spins_beside_a_copy",
    "no_bulk_wait",
    "wrong_bytes",
    "block_ends_early",
];

/// Thirty launches of one kernel, each in another order of its threads: whether all gave what the whole one gives.
fn run(device: &Arc<CudaDevice>, entry: &str, broken: bool) -> Result<bool> {
    let source = KernelSource::embedded("tests/kernels/defects.cu", include_str!("kernels/defects.cu"));
    let mut spec = Specialisation::new(source, ENTRIES);
    spec.constants = vec![("kBroken", broken.into())];
    let kernel = device.kernel(&spec, entry)?;
    let stream = device.new_stream()?;
    let numbers: Vec<i32> = (0..128).collect();
    let input = upload_on(device, &stream, &numbers, [128])?;
    let output = upload_on(device, &stream, &[-1i32; 128], [128])?;
    let mut config = LaunchConfig::new((2, 1, 1), (128, 1, 1)).shared(512);
    config.cluster = (entry == "block_ends_early").then_some((2, 1, 1));
    let want: Vec<i32> = numbers.iter().map(|i| 127 - i).collect();
    let mut equal = true;
    for _ in 0..30 {
        let args = [Arg::U64(output.address()), Arg::U64(input.address())];
        // SAFETY: both buffers hold 128 integers. The broken kernels go beyond them: that the device says so is the test,
        // and it does so before anything else is touched.
        unsafe { kernel.launch(&stream, &config, &args) }?;
        equal &= download::<i32>(&output.view(Dtype::I32, [128])?)? == want;
    }
    device.synchronize()?;
    Ok(equal)
}

#[test]
fn whole_kernels_are_not_complained_about() {
    let Some(d) = device() else { return };
    for entry in ENTRIES {
        assert!(run(&d, entry, false).unwrap_or_else(|e| panic!("{entry}: {e}")), "{entry}");
    }
}

/// A device that failed stays so: each broken kernel has a process of its own.
#[test]
fn every_planted_defect_is_found() {
    const TEST: &str = "every_planted_defect_is_found";
    let Some(d) = device() else { return };
    if let Ok(entry) = std::env::var("CHRONAXIE_TEST_CHILD") {
        match run(&d, &entry, true) {
            Ok(equal) => println!("found: {}", if equal { "nothing" } else { "other bits" }),
            Err(e) => println!("found: {e}"),
        }
        return;
    }
    for (entry, what) in [
        ("no_barrier", "other bits"),
        ("no_warp_barrier", "other bits"),
        ("reads_beyond", "byte 512 of an allocation of 512 bytes"),
        ("writes_before", "4 bytes before an allocation of 512"),
        ("shared_beyond", "thread (127, 0, 0)"),
        ("variable_beyond", "written beyond a variable in shared memory of 512 bytes"),
        ("beyond_bounds", "thread (3, 0, 0): a misaligned access, or an index beyond an array's bounds"),
        ("misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("not_written", "other bits"),
        ("different_barriers", "a barrier of the block 0 (127 of 128 threads there): 127 threads"),
        ("missing_lane", "__shfl_xor_sync with mask 0xffffffff: 31 threads"),
        ("waits_for_ever", "waits for ever at a volatile access"),
        ("no_copy_wait", "other bits"),
        ("spins_beside_a_copy", "waits for ever at a volatile access"),
        ("no_bulk_wait", "other bits"),
        ("wrong_bytes", "an mbarrier at"),
        ("block_ends_early", "of the cluster, which has ended"),
    ] {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args([TEST, "--exact", "--nocapture"]).env("CHRONAXIE_TEST_CHILD", entry);
        let out = c.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let told = text.split("found: ").nth(1).unwrap_or_else(|| panic!("{entry}: {text}"));
        assert!(told.contains(what), "{entry}: {told}");
        assert!(what == "other bits" || told.contains(entry), "the kernel is named: {told}");
    }
}

#[test]
fn streams_run_late_so_that_a_missing_wait_shows() {
    let Some(d) = device() else { return };
    if std::env::var("CHRONAXIE_EMULATED_STREAMS").is_ok_and(|s| s == "early") {
        return;
    }
    let (s, t) = (d.new_stream().unwrap(), d.new_stream().unwrap());
    let mut x = upload_on(&d, &s, &[1u8; 64], [64]).unwrap();
    s.synchronize().unwrap();
    let copy = |wait: Option<&Event>, x: &mut DeviceBuffer| {
        fill_bytes(&mut x.bytes_view_mut(), 7, &s).unwrap();
        if let Some(e) = wait {
            s.record(e).unwrap();
            t.wait(e).unwrap();
        }
        let mut back = [0u8; 64];
        copy_to_host(&mut ViewMut::from_slice(&mut back, [64]).unwrap(), &x.bytes_view(), &t).unwrap();
        back[0]
    };
    assert_eq!(copy(None, &mut x), 1, "the other stream was not waited for, and its fill was not there");
    s.synchronize().unwrap();
    fill_bytes(&mut x.bytes_view_mut(), 1, &s).unwrap();
    s.synchronize().unwrap();
    assert_eq!(copy(Some(&Event::new(&d, false).unwrap()), &mut x), 7);
    // Pinned memory is read when the stream comes to it.
    let mut pinned = PinnedBuffer::alloc(&d, 64).unwrap();
    pinned.as_mut_slice::<u8>().unwrap().fill(9);
    pinned.send(&mut x.bytes_view_mut(), &s).unwrap();
    pinned.as_mut_slice::<u8>().unwrap().fill(3);
    assert_eq!(download::<u8>(&x.bytes_view()).unwrap()[0], 9, "the slice waited for the copy");
}

#[test]
fn an_instruction_without_a_body_is_named() {
    let Some(d) = device() else { return };
    let source =
        r#"extern "C" __global__ void k(unsigned* x) { asm volatile("prmt.b32.f4e %0, %0, 1, 2;" : "+r"(*x)); }"#;
    let e: Error = d.compile_user(source, "k").unwrap_err();
    assert!(e.to_string().contains("prmt_b32_f4e") && e.to_string().contains("user.cu(1)"), "{e}");
}

#[test]
fn memory_that_was_freed_is_not_read_again() {
    const TEST: &str = "memory_that_was_freed_is_not_read_again";
    let Some(d) = device() else { return };
    if std::env::var_os("CHRONAXIE_TEST_CHILD").is_none() {
        let mut c = Command::new(std::env::current_exe().unwrap());
        let out = c.args([TEST, "--exact", "--nocapture"]).env("CHRONAXIE_TEST_CHILD", "1").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains("an allocation, now freed, of 512 bytes"), "{text}");
        return;
    }
    let stream = d.new_stream().unwrap();
    let k = d.compile_user(r#"extern "C" __global__ void k(const int* x, int* y) { *y = *x; }"#, "k").unwrap();
    let y = upload_on(&d, &stream, &[0i32], [1]).unwrap();
    let x = upload_on(&d, &stream, &[1i32; 128], [128]).unwrap();
    let address = x.address();
    drop(x);
    // SAFETY: none: the memory is freed, which is the test.
    unsafe { k.launch(&stream, &LaunchConfig::default(), &[Arg::U64(address), Arg::U64(y.address())]) }.unwrap();
    println!("{}", stream.synchronize().unwrap_err());
}

/// A product of 16-bit matrices as PTX has it: a by rows and b by rows of terms, from shared memory, b doubled on the way.
const PRODUCT: &str = r#"
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const unsigned short* a /* [16, 16] */, const unsigned short* b /* [16, 8] */, float* d /* [16, 8] */) {
  __shared__ __align__(16) unsigned short s[16][24], t[16][24];
  for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = a[i], t[i / 16][i % 16] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : 0;
  __syncthreads();
  const int lane = threadIdx.x, row = lane % 16, column = lane / 16 * 8 + ASKEW;
  unsigned x[4], y[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at(&s[row][column])) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(at(&t[row][column])) : "memory");
  for (int e = 0; e < 2; e++) asm("fma.rn.TYPEx2 %0, %0, %1, %2;" : "+r"(y[e]) : "r"(0x40004000u), "r"(0x80008000u));
  float z[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int e = 0; e < 4; e++) d[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = z[e];
}
"#;

#[test]
fn tensor_cores_multiply_as_ptx_has_it() {
    let Some(d) = device() else { return };
    let stream = d.new_stream().unwrap();
    let (a, b): (Vec<i32>, Vec<i32>) =
        ((0..256).map(|i| i * 7 % 23 - 11).collect(), (0..128).map(|i| i * 5 % 19 - 9).collect());
    let want: Vec<f32> = (0..128)
        .map(|i| 0.5 + (0..16).map(|k| (2 * a[i / 8 * 16 + k] * b[k * 8 + i % 8]) as f32).sum::<f32>())
        .collect();
    let bf16 = |x: i32| ((x as f32).to_bits() >> 16) as i16;
    // Small integers are normal halves, but for 0.
    let f16 = |x: i32| {
        let bits = (x as f32).to_bits();
        if x == 0 {
            0
        } else {
            ((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff)) as i16
        }
    };
    let types: [(&str, &dyn Fn(i32) -> i16); 2] = [("bf16", &bf16), ("f16", &f16)];
    for (name, bits) in types {
        let source = PRODUCT.replace("TYPE", name).replace("ASKEW", "0");
        let k = d.compile_user(&source, "k").unwrap();
        let upload = |list: &[i32]| {
            let list: Vec<u8> = list.iter().flat_map(|&x| bits(x).to_ne_bytes()).collect();
            upload_on(&d, &stream, &list, [list.len()]).unwrap()
        };
        let (a, b) = (upload(&a), upload(&b));
        let output = upload_on(&d, &stream, &[f32::NAN; 128], [128]).unwrap();
        let args = [Arg::U64(a.address()), Arg::U64(b.address()), Arg::U64(output.address())];
        // SAFETY: the buffers have the sizes that the kernel's parameters name.
        unsafe { k.launch(&stream, &LaunchConfig::new((1, 1, 1), (32, 1, 1)), &args) }.unwrap();
        stream.synchronize().unwrap();
        assert_eq!(download::<f32>(&output.view(Dtype::F32, [128]).unwrap()).unwrap(), want, "{name}");
    }
}

#[test]
fn a_matrix_of_misaligned_rows_is_refused() {
    const TEST: &str = "a_matrix_of_misaligned_rows_is_refused";
    let Some(d) = device() else { return };
    if std::env::var_os("CHRONAXIE_TEST_CHILD").is_none() {
        let mut c = Command::new(std::env::current_exe().unwrap());
        let out = c.args([TEST, "--exact", "--nocapture"]).env("CHRONAXIE_TEST_CHILD", "1").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains("ldmatrix of a row that is not aligned to 16 bytes"), "{text}");
        return;
    }
    let stream = d.new_stream().unwrap();
    let source = PRODUCT.replace("TYPE", "bf16").replace("ASKEW", "1");
    let k = d.compile_user(&source, "k").unwrap();
    let x = upload_on(&d, &stream, &[0f32; 128], [128]).unwrap();
    let args = [Arg::U64(x.address()), Arg::U64(x.address()), Arg::U64(x.address())];
    // SAFETY: the kernel is stopped before it reads beyond 512 bytes, or writes; the buffer has as many.
    let ran = unsafe { k.launch(&stream, &LaunchConfig::new((1, 1, 1), (32, 1, 1)), &args) };
    println!("{}", ran.and_then(|()| stream.synchronize()).unwrap_err());
}
