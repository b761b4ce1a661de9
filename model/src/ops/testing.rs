//! What the tests of the operations share.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};

/// A tensor of values around zero that are not round.
pub(super) fn random(shape: impl Into<Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// The elements of a tensor.
pub(super) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Checks that the fused form and the composed one (in `f64`) agree in value and in every gradient, to 2e-5 of the
/// largest element.
///
/// `f` is the operation, `backward` turns the inputs and the gradient of the result into those of the inputs.
pub(super) fn assert_same_gradients(
    inputs: &[Tensor],
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    backward: impl Fn(&[Vec<f32>], &[f32]) -> Vec<Vec<f32>>,
) {
    let out = f(inputs).unwrap();
    // A gradient that differs from element to element.
    let weights = random(out.shape(), 99);
    let mut fused = vec![flat(&out)];
    fused.extend(backward(&inputs.iter().map(flat).collect::<Vec<_>>(), &flat(&weights)));

    let double = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
    let vars: Vec<Var> = inputs.iter().map(|t| Var::from_tensor(&double(t)).unwrap()).collect();
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let out = f(&tensors).unwrap();
    let gradients = (&out * double(&weights)).unwrap().sum_all().unwrap().backward().unwrap();
    let mut composed = vec![out];
    composed.extend(vars.iter().map(|v| gradients.get(v).expect("every input has a gradient").clone()));

    assert_eq!(fused.len(), composed.len(), "gradients");
    for (i, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
        let composed = composed.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(fused.len(), composed.len(), "result {i}");
        let size = composed.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        let differences = fused.iter().zip(&composed).map(|(x, y)| (f64::from(*x) - y).abs());
        let worst = differences.fold(0.0_f64, f64::max);
        assert!(size > 0.0 && worst / size < 2e-5, "result {i}: {worst} of {size}");
    }
}
