use candle_core::Device;
use envace_kernels::vector_unit;

/// Names what can change the last bits of a result: the device, the compute type, and the processor's vector unit.
///
/// Two machines with equal fingerprints of a processor and one build compute the same bits; whoever keys results by
/// their inputs adds it to the key of everything that runs the model. That of a GPU has its name and compute capability;
/// there, bits can also depend on its libraries and on what is computed together, so that equal fingerprints promise
/// nothing.
pub fn arithmetic_fingerprint(device: &Device) -> String {
    match device {
        Device::Cpu => format!("cpu-{}-{}-f32", std::env::consts::ARCH, vector_unit()).to_lowercase(),
        Device::Cuda(device) => format!("cuda-{}", gpu_name(device)),
        Device::Metal(_) => "metal".to_owned(),
    }
}

#[cfg(feature = "cuda")]
fn gpu_name(device: &candle_core::CudaDevice) -> String {
    let stream = device.cuda_stream();
    let context = stream.context();
    let name = context.name().unwrap_or_else(|_| "unknown".to_owned());
    let (major, minor) = context.compute_capability().unwrap_or_default();
    let words: Vec<&str> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    format!("{}-sm{major}{minor}", words.join("-").to_lowercase())
}

#[cfg(not(feature = "cuda"))]
fn gpu_name(_: &candle_core::CudaDevice) -> String {
    "none".to_owned()
}
