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

/// Checks that the fused form (`f32`) and the composed one (`f64`) agree in value and in every gradient, to 2e-5 of
/// the largest element.
pub(super) fn assert_same_gradients(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let run = |dtype: DType| {
        let vars: Vec<Var> =
            inputs.iter().map(|t| Var::from_tensor(&t.to_dtype(dtype).unwrap()).unwrap()).collect();
        let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
        let out = f(&tensors).unwrap();
        // A gradient that differs from element to element.
        let weights = random(out.shape(), 99).to_dtype(dtype).unwrap();
        let gradients = (&out * weights).unwrap().sum_all().unwrap().backward().unwrap();
        let mut results = vec![out];
        results.extend(vars.iter().map(|v| gradients.get(v).expect("every input has a gradient").clone()));
        results
    };
    let (fused, composed) = (run(DType::F32), run(DType::F64));
    for (i, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
        assert_eq!(fused.shape(), composed.shape());
        let flat =
            |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let (fused, composed) = (flat(fused), flat(composed));
        let size = composed.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        let worst = fused.iter().zip(&composed).fold(0.0_f64, |m, (x, y)| m.max((x - y).abs()));
        assert!(size > 0.0 && worst / size < 2e-5, "result {i}: {worst} of {size}");
    }
}
