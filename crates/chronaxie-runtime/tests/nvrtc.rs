//! NVRTC itself, on machines without a GPU.
//!
//! `CHRONAXIE_NVRTC` and `CHRONAXIE_NVRTC12` (files or folders) name an NVRTC 13 and an NVRTC 12. Where they are not set
//! the tests print that they were skipped; with `CHRONAXIE_REQUIRE_NVRTC=1` that is a failure.

use chronaxie_runtime::ErrorKind;
use chronaxie_runtime::cuda::{
    Archs, COMPARED_ARCHS, CompileOptions, Constant, Header, KernelSource, Nvrtc, Specialisation, cache, cubin,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const HEADERS: &[Header] = &[("toy.cuh", include_str!("kernels/toy.cuh"))];

fn open(variable: &str) -> Option<Arc<Nvrtc>> {
    match std::env::var_os(variable) {
        Some(path) => Some(Nvrtc::open(Path::new(&path)).unwrap()),
        None if std::env::var_os("CHRONAXIE_REQUIRE_NVRTC").is_some_and(|v| v == "1") => {
            panic!("CHRONAXIE_REQUIRE_NVRTC=1 and {variable} is not set")
        }
        None => {
            println!("skipped: {variable} is not set");
            None
        }
    }
}

fn both() -> Vec<Arc<Nvrtc>> {
    ["CHRONAXIE_NVRTC", "CHRONAXIE_NVRTC12"].into_iter().filter_map(open).collect()
}

fn toy() -> Specialisation {
    let mut s = Specialisation::new(
        KernelSource::embedded("tests/kernels/toy.cu", include_str!("kernels/toy.cu")),
        &["toy_scale", "toy_shared"],
    );
    s.headers = HEADERS;
    s.constants = vec![("kShift", 3.into())];
    s
}

fn source(text: &'static str, entries: &[&'static str]) -> Specialisation {
    Specialisation::new(KernelSource::embedded("tests/inline.cu", text), entries)
}

#[test]
fn a_kernel_compiles_for_every_architecture_that_the_compiler_knows() {
    for nvrtc in both() {
        let mut compiled = 0;
        for arch in COMPARED_ARCHS {
            let result = nvrtc.compile(&toy(), arch, &CompileOptions::default());
            if !nvrtc.supports(arch) {
                let e = result.unwrap_err();
                assert_eq!(e.kind(), &ErrorKind::Unavailable);
                let m = e.to_string();
                assert!(m.contains(arch) && m.contains("sm_90") && m.contains("pip install"), "{m}");
                continue;
            }
            let cubin = result.unwrap();
            compiled += 1;
            assert_eq!(&cubin.bytes[..4], b"\x7fELF", "{arch}");
            assert_eq!(cubin.resources.len(), 7, "{}", cubin.log);
            let scale = cubin.entry("toy_scale").unwrap();
            assert!((4..=64).contains(&scale.registers), "{arch}: {scale:?}");
            assert!(cubin.resources.iter().all(|r| r.registers > 0), "{arch}: {}", cubin.log);
            assert_eq!(cubin.spill_bytes(), 0, "{arch}: {}", cubin.log);
        }
        // 12.4 knows up to sm_90a; 13.0 knows all six.
        assert_eq!(compiled, if nvrtc.version() < (12, 8) { 4 } else { 6 }, "{nvrtc:?}");
    }
}

#[test]
fn twelve_knows_the_older_and_thirteen_the_newer() {
    if let Some(n) = open("CHRONAXIE_NVRTC12") {
        assert_eq!(n.version().0, 12);
        assert!(n.supports("sm_60") && n.supports("sm_70") && n.supports("sm_90a"));
        n.compile(&toy(), "sm_60", &CompileOptions::default()).unwrap();
    }
    if let Some(n) = open("CHRONAXIE_NVRTC") {
        assert_eq!(n.version().0, 13);
        assert!(!n.supports("sm_70") && !n.supports("sm_80a") && n.supports("sm_121"));
        let m = n.compile(&toy(), "sm_70", &CompileOptions::default()).unwrap_err().to_string();
        assert!(m.contains("NVRTC 12 knows it"), "{m}");
        let m = n.compile(&toy(), "sm_999", &CompileOptions::default()).unwrap_err().to_string();
        assert!(m.contains("does not know sm_999"), "{m}");
    }
}

#[test]
fn spills_are_seen() {
    const TEXT: &str = r#"
extern "C" __global__ void __launch_bounds__(1024) spilling(const float* x, float* y, int n) {
  float a[200];
#pragma unroll
  for (int i = 0; i < 200; i++) a[i] = x[i * n + threadIdx.x];
  for (int r = 0; r < n; r++) {
#pragma unroll
    for (int i = 0; i < 200; i++) a[i] = a[i] * a[(i + 7) % 200] + a[(i + 91) % 200];
  }
#pragma unroll
  for (int i = 0; i < 200; i++) y[i * n + threadIdx.x] = a[i];
}
"#;
    for nvrtc in both() {
        let c = nvrtc.compile(&source(TEXT, &["spilling"]), "sm_80", &CompileOptions::default()).unwrap();
        let r = c.entry("spilling").unwrap();
        assert!(r.spill_store_bytes > 0 && r.spill_load_bytes > 0 && c.spill_bytes() > 0, "{}", c.log);
        assert_eq!(r.registers, 64, "1024 threads leave each 64 registers: {}", c.log);
    }
}

#[test]
fn a_bad_kernel_is_told_by_file_and_line() {
    let mut spec = source("// one\n// two\nextern \"C\" __global__ void bad() { undeclared = kWidth; }\n", &["bad"]);
    spec.constants = vec![("kWidth", 7.into()), ("kOther", true.into())];
    for nvrtc in both() {
        let e = nvrtc.compile(&spec, "sm_80", &CompileOptions::default()).unwrap_err();
        let ErrorKind::Compile { kernel, log } = e.kind() else { panic!("{e:?}") };
        assert_eq!(kernel, "tests/inline.cu");
        assert!(log.contains("tests/inline.cu(3): error") && log.contains("undeclared"), "{log}");
        assert!(!log.contains("kWidth\" is undefined"), "{log}");
        assert!(e.to_string().contains("tests/inline.cu(3)"), "{e}");
    }
}

#[test]
fn a_kernel_that_is_not_there_is_told_with_those_that_are() {
    let spec = source("extern \"C\" __global__ void here() {}\n", &["gone"]);
    for nvrtc in both() {
        let m = nvrtc.compile(&spec, "sm_80", &CompileOptions::default()).unwrap_err().to_string();
        assert!(m.contains("no kernel `gone`") && m.contains("it has: here"), "{m}");
    }
    let mut spec = source("extern \"C\" __global__ void here() {}\n", &["here"]);
    spec.archs = Archs::Only(&["sm_90a"]);
    for nvrtc in both() {
        let m = nvrtc.compile(&spec, "sm_80", &CompileOptions::default()).unwrap_err().to_string();
        assert!(m.contains("declares sm_90a"), "{m}");
    }
}

#[test]
fn constants_keep_their_bits() {
    const TEXT: &str = r#"
static_assert(CHRONAXIE_PROLOGUE == 1, "");
static_assert(kInt == -2147483647 - 1 && sizeof(kInt) == 4, "");
static_assert(kLong == 1LL << 40 && kLeast == -9223372036854775807LL - 1 && sizeof(kLong) == 8, "");
static_assert(kYes && !kNo, "");
static_assert(kTenth == 0.1f && kTiny == 1.40129846432481707e-45f && kMost == 3.40282346638528859812e+38f, "");
static_assert(kThird == 1.0 / 3.0 && kWhole == 3.0f && sizeof(kScalar) == 2, "");
extern "C" __global__ void k() {}
"#;
    let mut spec = source(TEXT, &["k"]);
    spec.constants = vec![
        ("kInt", i32::MIN.into()),
        ("kLong", Constant::Long(1 << 40)),
        ("kLeast", Constant::Long(i64::MIN)),
        ("kYes", true.into()),
        ("kNo", false.into()),
        ("kTenth", 0.1f32.into()),
        ("kTiny", f32::from_bits(1).into()),
        ("kMost", f32::MAX.into()),
        ("kThird", Constant::F64(1.0 / 3.0)),
        ("kWhole", 3f32.into()),
        ("kScalar", Constant::Type("unsigned short")),
    ];
    for nvrtc in both() {
        nvrtc.compile(&spec, "sm_80", &CompileOptions::default()).unwrap();
        // The assertions do fail where a constant differs.
        let mut wrong = spec.clone();
        wrong.constants[5].1 = Constant::F32(0.1f32.next_up());
        let e = nvrtc.compile(&wrong, "sm_80", &CompileOptions::default()).unwrap_err();
        assert!(e.to_string().contains("static assertion"), "{e}");
    }
}

#[test]
fn options_reach_the_compiler() {
    const TEXT: &str = r#"
extern "C" __global__ void k(float* x, float a, float b) {
#ifdef CHRONAXIE_DEBUG
  x[1] = 1.0f;
#endif
  x[0] = x[0] * a + b;
}
"#;
    for nvrtc in both() {
        let plain = source(TEXT, &["k"]);
        let mut unfused = plain.clone();
        unfused.fmad = false;
        let code = |s: &Specialisation, debug| nvrtc.compile(s, "sm_80", &CompileOptions { debug }).unwrap().bytes;
        assert_eq!(code(&plain, false), code(&plain, false));
        assert_ne!(code(&plain, false), code(&unfused, false));
        assert_ne!(code(&plain, false), code(&plain, true));
    }
}

#[test]
fn threads_compile_at_once() {
    for nvrtc in both() {
        let expected = nvrtc.compile(&toy(), "sm_80", &CompileOptions::default()).unwrap().bytes;
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let nvrtc = nvrtc.clone();
                    s.spawn(move || nvrtc.compile(&toy(), "sm_80", &CompileOptions::default()).unwrap().bytes)
                })
                .collect();
            for t in threads {
                assert_eq!(t.join().unwrap(), expected);
            }
        });
    }
}

/// In processes of its own over a fresh folder: the first compiles, the second reads from disk.
#[test]
fn a_second_process_compiles_nothing() {
    if std::env::var_os("CHRONAXIE_TEST_CHILD").is_some() {
        let started = Instant::now();
        for _ in 0..50 {
            cubin(&toy(), "sm_90a", &CompileOptions::default()).unwrap();
        }
        println!("counts: {:?}, first use {:.1} ms", cache::global().counts(), started.elapsed().as_secs_f64() * 1e3);
        return;
    }
    if open("CHRONAXIE_NVRTC").is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("chronaxie-nvrtc-test-{}", std::process::id()));
    let run = || {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["a_second_process_compiles_nothing", "--exact", "--nocapture"]);
        c.env("CHRONAXIE_TEST_CHILD", "1").env("CHRONAXIE_CACHE_DIR", &folder).env_remove("CHRONAXIE_PACK");
        let out = c.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let (first, second) = (run(), run());
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{first}{second}");
    assert!(first.contains("compiled: 1, from_disk: 0, from_pack: 0, from_memory: 49"), "{first}");
    assert!(second.contains("compiled: 0, from_disk: 1, from_pack: 0, from_memory: 49"), "{second}");
}
