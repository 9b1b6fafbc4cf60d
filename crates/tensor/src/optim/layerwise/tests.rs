use super::*;

#[test]
fn the_bound_is_the_larger_norm_and_what_is_not_finite_stays() {
    let nan = f32::NAN;
    // Sums, the step before, so far, the scale of the loss; then so far, the bound, and the gradients' factor.
    type Case = ([f32; 2], f32, f32, Option<f32>, [f32; 3]);
    let cases: [Case; 7] = [
        ([3.0, 4.0], 1.0, 2.0, None, [9.0, 9.0, 0.0]),
        ([3.0, 4.0], 20.0, 2.0, None, [9.0, 20.0, 0.0]),
        ([3.0, nan], 20.0, 2.0, None, [nan, nan, 0.0]),
        ([12.0, 4.0], 1.0, 0.0, Some(2.0), [16.0, 4.0, 0.5]),
        ([12.0, 4.0], 7.0, 0.0, Some(2.0), [16.0, 7.0, 0.5]),
        ([12.0, f32::INFINITY], 7.0, 0.0, Some(2.0), [f32::INFINITY, f32::INFINITY, 0.0]),
        ([12.0, nan], 7.0, 0.0, Some(1.0), [nan, nan, 1.0]),
    ];
    for (device, (sums, previous, so_far, scale, expected)) in
        Device::for_tests().into_iter().flat_map(|device| cases.map(|case| (device.clone(), case)))
    {
        let of = |values: &[f32]| Tensor::from_f32(values, [values.len()], &device).unwrap();
        let (sums, previous, so_far) = (of(&sums), of(&[previous]), of(&[so_far]));
        let scale = scale.map(|scale| of(&[scale, 0.0, 0.0]));
        let squares = of(&vec![0.0; if scale.is_some() { 2 } else { 1 }]);
        let inputs: Vec<&Tensor> = [&sums, &previous].into_iter().chain(&scale).collect();
        run_into(&Bound { mixed: scale.is_some() }, &inputs, &[&so_far, &squares]).unwrap();
        let mut got = [so_far.to_f32().unwrap(), squares.to_f32().unwrap()].concat();
        got.resize(3, 0.0);
        let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
        assert!(got.iter().zip(&expected).all(same), "{device}: {got:?}, not {expected:?}");
        // What is kept of it for the next step.
        let skipped = Tensor::from_u32(&[5], [1], &device).unwrap();
        run_into(&Keep { mixed: scale.is_some() }, &[&squares], &[&previous, &skipped]).unwrap();
        let (kept, is_finite) = (previous.to_f32().unwrap()[0], expected[1].is_finite());
        assert_eq!(kept == expected[1], is_finite, "{device}: {kept}");
        let counts = !is_finite && (scale.is_none() || expected[2] != 0.0);
        assert_eq!(skipped.to_u32().unwrap(), [5 + u32::from(counts)], "{device} {expected:?}");
    }
}
