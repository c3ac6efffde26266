//! A kernel of your own on the library's tensors and stream: a scan runs on the GPU, then CUDA C++ from this file squashes
//! its states where they lie, in order on the same stream, without a copy and without nvcc.
//!
//! `cargo run --release -p chronaxie --example custom_kernel`. Without a GPU it says so and ends.

#![allow(unsafe_code)]

use chronaxie::call::Session;
use chronaxie::cuda::{Arg, CudaDevice, LaunchConfig, UserKernel, download};
use chronaxie::op::Pass;
use chronaxie::{Error, Result, registry};

// kLimit comes from Rust: what shapes the code is a constant, what changes from call to call an argument.
const SOURCE: &str = r#"
extern "C" __global__ void squash(float* h, long long n) {  // h: [n], in place
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) h[i] = h[i] / (1.0f + fabsf(h[i]) / (float)kLimit);
}
"#;

fn main() -> Result<()> {
    let device = match CudaDevice::open(0).and_then(|d| d.require_compiler().map(|()| d)) {
        Ok(device) => device,
        Err(e) => {
            println!("nothing to show here: {e}");
            return Ok(());
        }
    };
    println!("{}", device.name());

    let problem = registry::find("linear_scan")?.problem(&"B2_D32_T1000".parse()?)?;
    let mut session = Session::new(problem.clone(), &chronaxie::Device::Cuda(device.clone()))?;
    let states = session.forward(&problem.sample(Pass::Forward, 1)?)?;
    let states = states.get("h")?;

    // Compiled for this device at the first run of this program, read from the cache afterwards.
    let kernel = UserKernel::new("squash.cu", SOURCE).constant("kLimit", 4).compile(&device, "squash")?;
    let n = states.data.len();
    let h = session.workspace().tensor_mut("h")?;
    let list = [Arg::U64(h.view_mut()?.address()), Arg::I64(n as i64)];
    // SAFETY: h holds n floats, which the kernel reads and writes; nothing else uses it until the download has waited.
    unsafe { kernel.launch(device.default_stream(), &LaunchConfig::linear(n, 256), &list) }?;

    let squashed = download::<f32>(&h.view())?;
    let want = states.data.iter().map(|h| h / (1.0 + h.abs() / 4.0));
    let worst = squashed.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    println!("{n} states squashed; the largest error is {worst:.1e}");
    if worst.is_nan() || worst > 1e-6 {
        return Err(Error::value(format!("squash is off by {worst:.1e}")));
    }
    Ok(())
}
