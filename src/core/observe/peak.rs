//! Peak arithmetic of devices, for the model FLOPs utilization. Where a device is not known nothing is guessed.

use std::path::Path;

/// Part of a GPU's name, its dense bf16 and its float32 peak in TFLOP/s without TF32, from the makers' data sheets. The
/// first that fits counts.
const PEAKS: [(&str, f64, f64); 16] = [
    ("GB200", 2500.0, 80.0),
    ("B200", 2250.0, 80.0),
    ("GH200", 989.4, 66.9),
    ("H200 NVL", 835.5, 60.0),
    ("H200", 989.4, 66.9),
    ("H100 NVL", 835.5, 60.0),
    ("H100 PCIe", 756.0, 51.2),
    ("H100", 989.4, 66.9),
    ("H800", 989.4, 66.9),
    ("H20", 148.0, 44.0),
    ("A100", 312.0, 19.5),
    ("A800", 312.0, 19.5),
    ("L40S", 362.0, 91.6),
    ("L40", 181.0, 90.5),
    ("RTX 4090", 165.2, 82.6),
    ("L4", 121.0, 30.3),
];

/// Peak FLOP/s of a GPU of this name, where it is known.
pub fn peak_flops(gpu: &str, is_bf16: bool) -> Option<f64> {
    let (_, bf16, float32) = PEAKS.iter().find(|(name, ..)| gpu.contains(name))?;
    Some(if is_bf16 { *bf16 } else { *float32 } * 1e12)
}

/// Name of the first NVIDIA GPU of this machine, as its driver says.
pub fn gpu_name() -> Option<String> {
    let gpus = std::fs::read_dir(Path::new("/proc/driver/nvidia/gpus")).ok()?;
    let mut files: Vec<_> = gpus.flatten().map(|gpu| gpu.path().join("information")).collect();
    files.sort();
    let text = std::fs::read_to_string(files.first()?).ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_drivers_write_them() {
        let peak = |name: &str| peak_flops(name, true).map(|flops| flops / 1e12);
        assert_eq!(peak("NVIDIA H200"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 80GB HBM3"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some(756.0));
        assert_eq!((peak("NVIDIA H100 NVL"), peak("NVIDIA H200 NVL")), (Some(835.5), Some(835.5)));
        assert_eq!(
            (peak("NVIDIA H20"), peak("NVIDIA L40S"), peak("NVIDIA L4")),
            (Some(148.0), Some(362.0), Some(121.0))
        );
        assert_eq!(peak("NVIDIA A100-SXM4-80GB"), Some(312.0));
        assert_eq!((peak("Tesla V100"), peak_flops("NVIDIA A100-PCIE-40GB", false)), (None, Some(19.5e12)));
    }
}
