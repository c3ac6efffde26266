//! Which vector instructions the CPU bodies use, asked once.

use std::fmt;
use std::sync::OnceLock;

/// A set of vector instructions for which the CPU backends have bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SimdLevel {
    /// Whatever the compiler's base target has.
    Portable,
    /// Arm NEON (always there on 64-bit Arm).
    Neon,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, VL, DQ, BW.
    Avx512,
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

/// The best level of this CPU, or the lower one that `CHRONAXIE_SIMD` (`portable`, `neon`, `avx2`, `avx512`) names.
pub fn level() -> SimdLevel {
    static LEVEL: OnceLock<SimdLevel> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let best = detect();
        let asked = match std::env::var("CHRONAXIE_SIMD").as_deref() {
            Ok("portable") => SimdLevel::Portable,
            Ok("neon") => SimdLevel::Neon,
            Ok("avx2") => SimdLevel::Avx2,
            _ => best,
        };
        let same_family = (asked == SimdLevel::Neon) == (best == SimdLevel::Neon) || asked == SimdLevel::Portable;
        if same_family { asked.min(best) } else { best }
    })
}

fn detect() -> SimdLevel {
    #[cfg(target_arch = "x86_64")]
    {
        if ["avx512f", "avx512vl", "avx512dq", "avx512bw"].iter().all(|f| has(f)) && has("fma") {
            return SimdLevel::Avx512;
        }
        if has("avx2") && has("fma") {
            return SimdLevel::Avx2;
        }
        SimdLevel::Portable
    }
    #[cfg(target_arch = "aarch64")]
    {
        SimdLevel::Neon
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        SimdLevel::Portable
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx2" => std::arch::is_x86_feature_detected!("avx2"),
        "fma" => std::arch::is_x86_feature_detected!("fma"),
        "avx512f" => std::arch::is_x86_feature_detected!("avx512f"),
        "avx512vl" => std::arch::is_x86_feature_detected!("avx512vl"),
        "avx512dq" => std::arch::is_x86_feature_detected!("avx512dq"),
        "avx512bw" => std::arch::is_x86_feature_detected!("avx512bw"),
        _ => false,
    }
}

/// Compiles one generic body for every [`SimdLevel`] and calls the one for [`level`].
///
/// `dispatch!(fn name(args...) -> ret, body)` defines `fn name` that calls `body(args...)`, an `#[inline(always)]`
/// function, inside `#[target_feature]` shells, so that `f32::mul_add` and plain loops become the wide instructions.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                match $crate::simd::level() {
                    // SAFETY: the level says that this CPU has the features.
                    $crate::simd::SimdLevel::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: the level says that this CPU has the features.
                    $crate::simd::SimdLevel::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            $body($($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    #[inline(always)]
    fn body(x: &[f32], y: &mut [f32]) -> f32 {
        let mut s = 0.0;
        for (a, b) in x.iter().zip(y) {
            *b = a.mul_add(2.0, *b);
            s += *b;
        }
        s
    }
    dispatch!(fn axpy(x: &[f32], y: &mut [f32]) -> f32 = body);

    #[test]
    #[allow(unsafe_code)]
    fn dispatched_bodies_compute() {
        let x = [1f32, 2., 3.];
        let mut y = [1f32; 3];
        assert_eq!(axpy(&x, &mut y), 3. + 5. + 7.);
    }

    #[test]
    fn the_level_has_a_name() {
        assert!(["portable", "neon", "avx2", "avx512"].contains(&super::level().to_string().as_str()));
    }
}
