use candle_core::Device;
use envace_kernels::vector_unit;

/// Names what can change the last bits of a result: the device, the compute type, and the processor's vector unit.
///
/// Two machines with equal fingerprints and one build compute the same bits; whoever keys results by their inputs
/// adds it to the key of everything that runs the model.
pub fn arithmetic_fingerprint(device: &Device) -> String {
    let device = match device {
        Device::Cpu => format!("cpu-{}-{}", std::env::consts::ARCH, vector_unit()),
        Device::Cuda(_) => "cuda".to_owned(),
        Device::Metal(_) => "metal".to_owned(),
    };
    format!("{}-f32", device.to_lowercase())
}
