//! What a kernel is compiled from: its source, the shared headers, the constants that specialise it, and the options.

use super::cache::Key;
use super::nvrtc::{Cubin, Nvrtc};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

/// A CUDA C++ source and the name under which the compiler and every error know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSource {
    /// `layers/ltc/cuda/forward.cu`.
    pub name: Cow<'static, str>,
    /// The text.
    pub text: Cow<'static, str>,
}

impl KernelSource {
    /// A source that is embedded in the library.
    pub const fn embedded(name: &'static str, text: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), text: Cow::Borrowed(text) }
    }
    /// A source made or read at run time.
    pub fn new(name: impl Into<Cow<'static, str>>, text: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), text: text.into() }
    }
}

/// A header that a source may include by name; it lives in memory.
pub type Header = (&'static str, &'static str);

/// The value of a named constant of the prologue.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Constant {
    /// `constexpr int`.
    Int(i32),
    /// `constexpr long long`.
    Long(i64),
    /// `constexpr bool`.
    Bool(bool),
    /// `constexpr float`; it must be finite.
    F32(f32),
    /// `constexpr double`; it must be finite.
    F64(f64),
    /// A type's name: `using kScalar = float;`.
    Type(&'static str),
}

impl From<i32> for Constant {
    fn from(v: i32) -> Self {
        Self::Int(v)
    }
}
impl From<bool> for Constant {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}
impl From<f32> for Constant {
    fn from(v: f32) -> Self {
        Self::F32(v)
    }
}

impl Constant {
    fn is_finite(self) -> bool {
        match self {
            Self::F32(v) => v.is_finite(),
            Self::F64(v) => v.is_finite(),
            _ => true,
        }
    }
    fn declare(self, name: &str, out: &mut String) {
        // Writing to a String cannot fail. `{:e}` prints the shortest digits that read back to the same bits.
        let _ = match self {
            Self::Int(i32::MIN) => writeln!(out, "[[maybe_unused]] constexpr int {name} = -2147483647 - 1;"),
            Self::Int(v) => writeln!(out, "[[maybe_unused]] constexpr int {name} = {v};"),
            Self::Long(i64::MIN) => {
                writeln!(out, "[[maybe_unused]] constexpr long long {name} = -9223372036854775807LL - 1;")
            }
            Self::Long(v) => writeln!(out, "[[maybe_unused]] constexpr long long {name} = {v}LL;"),
            Self::Bool(v) => writeln!(out, "[[maybe_unused]] constexpr bool {name} = {v};"),
            Self::F32(v) => writeln!(out, "[[maybe_unused]] constexpr float {name} = {v:e}f;"),
            Self::F64(v) => writeln!(out, "[[maybe_unused]] constexpr double {name} = {v:e};"),
            Self::Type(v) => writeln!(out, "using {name} = {v};"),
        };
    }
}

/// The architectures that a source declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Archs {
    /// Every one, from sm_60 on: a portable kernel.
    All,
    /// Compute capability at least this (`80` is sm_80), whatever the suffix.
    AtLeast(u32),
    /// Exactly these: `sm_90a` for wgmma.
    Only(&'static [&'static str]),
}

/// The architectures for which every kernel that declares them is compiled where there is no GPU.
pub const COMPARED_ARCHS: [&str; 6] = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"];

/// The number and the suffix of an architecture's name: `sm_90a` is 90 and `a`.
pub fn parse_arch(arch: &str) -> Result<(u32, &str)> {
    let digits = arch.strip_prefix("sm_").map(|rest| rest.trim_end_matches(|c: char| c.is_ascii_lowercase()));
    match digits.map(str::parse) {
        Some(Ok(number)) if arch.len() - 3 - digits.unwrap_or_default().len() <= 1 => {
            Ok((number, &arch[3 + digits.unwrap_or_default().len()..]))
        }
        _ => Err(Error::config(format!("`{arch}` is no architecture; they are written sm_80, sm_90a, sm_120"))),
    }
}

impl Archs {
    /// Whether `arch` is among them.
    pub fn contains(&self, arch: &str) -> bool {
        match *self {
            Self::All => parse_arch(arch).is_ok_and(|(n, _)| n >= 60),
            Self::AtLeast(least) => parse_arch(arch).is_ok_and(|(n, _)| n >= least),
            Self::Only(list) => list.contains(&arch),
        }
    }
    /// Those of [`COMPARED_ARCHS`] that are among them.
    pub fn compared(&self) -> impl Iterator<Item = &'static str> + use<> {
        let archs = *self;
        COMPARED_ARCHS.into_iter().filter(move |a| archs.contains(a))
    }
}

/// One source with the constants that shape its registers and shared memory: what is compiled, cached and packed.
#[derive(Debug, Clone)]
pub struct Specialisation {
    /// The source.
    pub source: KernelSource,
    /// The headers that it may include.
    pub headers: &'static [Header],
    /// Named constants, in the order in which they are declared.
    pub constants: Vec<(&'static str, Constant)>,
    /// Whether multiplications and additions may be fused. False where bits must equal the CPU's.
    pub fmad: bool,
    /// The architectures that the source declares.
    pub archs: Archs,
    /// The kernels, each `extern "C" __global__`.
    pub entries: Vec<&'static str>,
}

impl Specialisation {
    /// A portable source without headers or constants.
    pub fn new(source: KernelSource, entries: &[&'static str]) -> Self {
        Self { source, headers: &[], constants: Vec::new(), fmad: true, archs: Archs::All, entries: entries.to_vec() }
    }
    pub(super) fn program(&self) -> Program<'_> {
        Program {
            name: &self.source.name,
            text: &self.source.text,
            headers: self.headers.to_vec(),
            constants: &self.constants,
            fmad: self.fmad,
            archs: self.archs,
            entries: &self.entries,
        }
    }
    /// What a pack and the memory cache know this specialisation by, for `arch` and `options`.
    pub fn key(&self, arch: &str, options: &CompileOptions) -> Key {
        self.program().key(arch, options)
    }
    /// A short name with the constants in it, for reports: `layers/ltc/cuda/forward.cu [kHidden = 128]`.
    pub fn label(&self) -> String {
        let mut s = self.source.name.to_string();
        for (i, (name, value)) in self.constants.iter().enumerate() {
            let _ = write!(s, "{}{name} = ", if i == 0 { " [" } else { ", " });
            let _ = match value {
                Constant::Int(v) => write!(s, "{v}"),
                Constant::Long(v) => write!(s, "{v}"),
                Constant::Bool(v) => write!(s, "{v}"),
                Constant::F32(v) => write!(s, "{v}"),
                Constant::F64(v) => write!(s, "{v}"),
                Constant::Type(v) => write!(s, "{v}"),
            };
        }
        if !self.constants.is_empty() {
            s.push(']');
        }
        s
    }
}

/// How to compile, apart from what is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompileOptions {
    /// Device asserts: `CHRONAXIE_DEBUG` is defined.
    pub debug: bool,
}

static DEBUG: AtomicU8 = AtomicU8::new(0);

impl CompileOptions {
    /// What kernels that are launched get: [`set_debug_kernels`], else whether `CHRONAXIE_DEBUG_KERNELS` is `1`.
    pub fn current() -> Self {
        let debug = match DEBUG.load(Ordering::Relaxed) {
            0 => std::env::var_os("CHRONAXIE_DEBUG_KERNELS").is_some_and(|v| v == "1"),
            state => state == 2,
        };
        Self { debug }
    }
}

/// Whether kernels made from now on carry device asserts.
pub fn set_debug_kernels(debug: bool) {
    DEBUG.store(1 + u8::from(debug), Ordering::Relaxed);
}

/// What is compiled, borrowed from a [`Specialisation`] or a user's source.
pub(super) struct Program<'a> {
    pub name: &'a str,
    pub text: &'a str,
    pub headers: Vec<(&'a str, &'a str)>,
    pub constants: &'a [(&'static str, Constant)],
    pub fmad: bool,
    pub archs: Archs,
    pub entries: &'a [&'a str],
}

impl Program<'_> {
    /// What the compiler sees: a prologue of constants, then the source under its own name and line numbers.
    pub fn emitted(&self) -> String {
        let mut out = String::from("#define CHRONAXIE_PROLOGUE 1\n");
        for (name, value) in self.constants {
            value.declare(name, &mut out);
        }
        let _ = writeln!(out, "#line 1 \"{}\"", self.name.replace('\\', "/").replace('"', "'"));
        out.push_str(self.text);
        out
    }

    pub fn options(&self, arch: &str, options: &CompileOptions) -> Vec<String> {
        let mut list = vec![
            format!("--gpu-architecture={arch}"),
            "--std=c++17".into(),
            "-default-device".into(),
            "--ptxas-options=-v".into(),
            "-lineinfo".into(),
            format!("--fmad={}", self.fmad),
        ];
        if options.debug {
            list.push("-DCHRONAXIE_DEBUG=1".into());
        }
        list
    }

    /// SHA-256 of all that the compiler gets. Every part is preceded by its length, so no two programs share a key.
    pub fn key(&self, arch: &str, options: &CompileOptions) -> Key {
        let mut h = Sha256::new();
        let mut part = |s: &str| {
            h.update((s.len() as u64).to_le_bytes());
            h.update(s.as_bytes());
        };
        part("chronaxie kernel 1");
        part(self.name);
        part(&self.emitted());
        for (name, text) in &self.headers {
            part(name);
            part(text);
        }
        part("options");
        for o in self.options(arch, options) {
            part(&o);
        }
        for e in self.entries {
            part(e);
        }
        Key(h.finalize().into())
    }

    /// Refuses what cannot be compiled before the compiler is asked.
    pub fn check(&self, arch: &str) -> Result<()> {
        parse_arch(arch)?;
        if !self.archs.contains(arch) {
            let declared = match self.archs {
                Archs::All => "sm_60 and newer".to_string(),
                Archs::AtLeast(n) => format!("sm_{n} and newer"),
                Archs::Only(list) => list.join(", "),
            };
            return Err(Error::unavailable(format!("{} declares {declared}, and {arch} was asked for", self.name)));
        }
        let parts = self.headers.iter().flat_map(|(n, t)| [*n, *t]);
        if [self.name, self.text].into_iter().chain(parts).any(|s| s.contains('\0')) {
            return Err(Error::value(format!("{}: a source cannot contain the character NUL", self.name)));
        }
        for (name, value) in self.constants {
            if !value.is_finite() {
                return Err(Error::value(format!("{}: the constant {name} = {value:?} is not finite", self.name)));
            }
        }
        Ok(())
    }
}

/// What NVRTC sees of `spec`, for `compile --emit`.
pub fn emitted_source(spec: &Specialisation) -> String {
    spec.program().emitted()
}

impl Nvrtc {
    /// Compiles `spec` for `arch` (`sm_90a`), without any cache.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Compile`] with the compiler's log, which names file and line;
    /// [`crate::ErrorKind::Unavailable`] for an architecture that the source does not declare or this NVRTC does not
    /// know.
    pub fn compile(&self, spec: &Specialisation, arch: &str, options: &CompileOptions) -> Result<Cubin> {
        self.compile_program(&spec.program(), arch, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Specialisation {
        let mut s = Specialisation::new(KernelSource::embedded("layers/toy/cuda/toy.cu", "// toy\n"), &["toy"]);
        s.constants = vec![("kHidden", 128.into()), ("kEps", 1e-8f32.into()), ("kMasked", true.into())];
        s.constants.push(("kScalar", Constant::Type("float")));
        s
    }

    #[test]
    fn the_prologue_names_constants_and_the_line() {
        let s = emitted_source(&spec());
        assert!(s.starts_with("#define CHRONAXIE_PROLOGUE 1\n"), "{s}");
        for line in [
            "constexpr int kHidden = 128;",
            "constexpr float kEps = 1e-8f;",
            "constexpr bool kMasked = true;",
            "using kScalar = float;",
        ] {
            assert!(s.contains(line), "{line} in {s}");
        }
        assert!(s.ends_with("#line 1 \"layers/toy/cuda/toy.cu\"\n// toy\n"), "{s}");
        assert_eq!(
            spec().label(),
            "layers/toy/cuda/toy.cu [kHidden = 128, kEps = 0.00000001, kMasked = true, kScalar = float]"
        );
    }

    #[test]
    fn every_part_of_a_program_changes_its_key() {
        let (base, options) = (spec(), CompileOptions::default());
        let key = base.key("sm_80", &options);
        assert_eq!(key, spec().key("sm_80", &options));
        let mut others = vec![base.key("sm_89", &options), base.key("sm_80", &CompileOptions { debug: true })];
        for change in [
            (|s| s.fmad = false) as fn(&mut Specialisation),
            |s| s.constants[0].1 = Constant::Int(64),
            |s| s.constants.swap(0, 1),
            |s| s.headers = &[("a.cuh", "")],
            |s| s.headers = &[("a.cuh", "1")],
            |s| s.source = KernelSource::embedded("layers/toy/cuda/toy.cu", "// Toy\n"),
            |s| s.source = KernelSource::embedded("layers/toy/cuda/joy.cu", "// toy\n"),
            |s| s.entries = vec!["joy"],
        ] {
            let mut s = spec();
            change(&mut s);
            others.push(s.key("sm_80", &options));
        }
        others.push(key);
        let count = others.len();
        others.sort_by_key(|k| k.0);
        others.dedup();
        assert_eq!(others.len(), count);
    }

    #[test]
    fn declared_architectures_are_kept() {
        assert_eq!(Archs::All.compared().count(), 6);
        assert_eq!(Archs::AtLeast(80).compared().next(), Some("sm_80"));
        assert!(Archs::AtLeast(90).contains("sm_90a") && !Archs::AtLeast(90).contains("sm_89"));
        let hopper = Archs::Only(&["sm_90a"]);
        assert_eq!(hopper.compared().collect::<Vec<_>>(), ["sm_90a"]);
        let mut s = spec();
        s.archs = hopper;
        let m = s.program().check("sm_80").unwrap_err().to_string();
        assert_eq!(m, "layers/toy/cuda/toy.cu declares sm_90a, and sm_80 was asked for");
        assert_eq!(parse_arch("sm_100a").unwrap(), (100, "a"));
        for wrong in ["80", "sm_", "sm_ab", "compute_80", "sm_90ab", "sm_9a0"] {
            assert!(parse_arch(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn constants_that_cannot_be_written_are_refused() {
        let mut s = spec();
        s.constants[1].1 = Constant::F32(f32::NAN);
        assert!(s.program().check("sm_80").unwrap_err().to_string().contains("kEps"));
        let s = Specialisation::new(KernelSource::new("a.cu", "\0"), &[]);
        assert!(s.program().check("sm_80").unwrap_err().to_string().contains("NUL"));
    }
}
