use super::*;
use crate::gpu::gpu_for_tests;
use crate::tensor::no_grad;
use crate::testing::assert_close;

/// h (2, 100, 12), weight (37, 12), targets (2, 100).
fn inputs(device: &Device) -> [Tensor; 3] {
    let wave = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    let targets: Vec<u32> = (0..200).map(|i| if i % 7 == 3 { IGNORED } else { i * 11 % 37 }).collect();
    [
        Tensor::from_f32(&wave(2400, 0.7), [2, 100, 12], device).unwrap().requires_grad().unwrap(),
        Tensor::from_f32(&wave(444, 1.3), [37, 12], device).unwrap().requires_grad().unwrap(),
        Tensor::from_u32(&targets, [2, 100], device).unwrap(),
    ]
}

#[track_caller]
fn expect_close(what: &str, got: &Tensor, want: &Tensor) {
    // Gradients below 0.1, sums of up to 200 terms.
    assert_close(what, &got.to_f32().unwrap(), &want.to_f32().unwrap(), 1e-6, 1e-6);
}

/// The plain loss, and all that can be asked for.
fn criteria(class_weights: &Tensor) -> [Criterion<'_>; 4] {
    let criterion = |label_smoothing, class_weights| Criterion { label_smoothing, class_weights };
    let weights = Some(class_weights);
    [criterion(0.0, None), criterion(0.2, None), criterion(0.0, weights), criterion(0.2, weights)]
}

fn class_weights(vocab: usize, device: &Device) -> Tensor {
    let values: Vec<f32> = (0..vocab).map(|i| (i % 5) as f32 / 2.0).collect();
    Tensor::from_f32(&values, [vocab], device).unwrap()
}

#[test]
fn any_chunking_gives_the_loss_and_gradients_of_the_separate_ops() {
    for device in Device::for_tests() {
        let weights = class_weights(37, &device);
        let bias = || {
            let bias: Vec<f32> = (0..37).map(|i| (i as f32).cos()).collect();
            Tensor::from_f32(&bias, [37], &device).unwrap().requires_grad().unwrap()
        };
        let cases = criteria(&weights).into_iter().flat_map(|c| [(c, None, false), (c, Some(-2.5), true)]);
        for (criterion, factor, is_biased) in cases {
            let backward = |loss: &Tensor| match factor {
                None => loss.backward().unwrap(),
                Some(factor) => loss.scale(factor).unwrap().backward().unwrap(),
            };
            let [h, weight, targets] = inputs(&device);
            let bias1 = is_biased.then(bias);
            let logits = h.linear(&weight, true, bias1.as_ref()).unwrap();
            let want = logits.cross_entropy(&targets, criterion).unwrap();
            backward(&want);
            let (weighing, more) = criterion.prepare("linear_cross_entropy", 37).unwrap();
            // Rows of a chunk, and columns of the logits: more than classes where nothing has to be as long.
            let sizes = [[64, 37], [128, 37], [192, 37], [256, 37], [64, 40], [256, 40]];
            let whole = is_biased || weighing.weighted;
            for [chunk, columns] in sizes.into_iter().filter(|[_, columns]| !whole || *columns == 37) {
                let ([h2, weight2, _], bias2) = (inputs(&device), is_biased.then(bias));
                let classifier = Classifier {
                    weight: weight2.clone(),
                    bias: bias2.clone(),
                    weighing,
                    class_weights: more.clone(),
                    chunk,
                    columns,
                    slice: None,
                };
                let loss = mean_loss(&classifier, &h2, &targets, None).unwrap();
                let at = format!("{device}, {chunk} rows, {columns} columns, {weighing:?}, {factor:?}");
                expect_close(&format!("{at}: loss"), &loss, &want);
                let plain = no_grad(|| mean_loss(&classifier, &h2, &targets, None));
                expect_close(&format!("{at}: loss without gradients"), &plain.unwrap(), &want);
                backward(&loss);
                expect_close(&format!("{at}: dh"), h2.grad().unwrap(), h.grad().unwrap());
                expect_close(&format!("{at}: dweight"), weight2.grad().unwrap(), weight.grad().unwrap());
                for (bias2, bias1) in bias2.iter().zip(&bias1) {
                    expect_close(&format!("{at}: dbias"), bias2.grad().unwrap(), bias1.grad().unwrap());
                }
            }
        }
    }
}

/// As many threads to a row as a workgroup may have, with rows of vectors and not.
#[test]
fn long_rows_have_the_loss_and_gradients_of_the_cpu() {
    let Some(gpu) = gpu_for_tests().map(Device::Gpu) else { return };
    for (vocab, which) in [(8200, 0), (8200, 3), (2051, 0), (2051, 3)] {
        let [cpu, gpu] = [&Device::Cpu, &gpu].map(|device| {
            let wave = |n: usize, step: f32| (0..n).map(|i| 3.0 * (i as f32 * step).sin()).collect::<Vec<f32>>();
            let tensor = |shape: [usize; 2], step| {
                let t = Tensor::from_f32(&wave(shape[0] * shape[1], step), shape, device).unwrap();
                t.requires_grad().unwrap()
            };
            let (h, weight) = (tensor([5, 4], 0.7), tensor([vocab, 4], 1.3));
            let targets = Tensor::from_u32(&[0, 7, vocab as u32 - 1, IGNORED, 1025], [5], device).unwrap();
            let class_weights = class_weights(vocab, device);
            let criterion = criteria(&class_weights)[which];
            let loss = h.linear_cross_entropy(&weight, &targets, criterion, None).unwrap();
            loss.backward().unwrap();
            [loss.clone(), h.grad().unwrap().clone(), weight.grad().unwrap().clone()]
        });
        for (i, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
            expect_close(&format!("{vocab}, criterion {which}: {i}"), gpu, cpu);
        }
    }
}

#[test]
fn gradients_of_two_losses_add_up() {
    for device in Device::for_tests() {
        let [h, weight, targets] = inputs(&device);
        h.linear_cross_entropy(&weight, &targets, Criterion::default(), None).unwrap().backward().unwrap();
        let [once_h, once_weight] = [&h, &weight].map(|t| t.grad().unwrap().scale(2.0).unwrap());
        h.linear_cross_entropy(&weight, &targets, Criterion::default(), None).unwrap().backward().unwrap();
        expect_close(&format!("{device}: dh"), h.grad().unwrap(), &once_h);
        expect_close(&format!("{device}: dweight"), weight.grad().unwrap(), &once_weight);
    }
}

#[test]
fn without_gradients_the_loss_is_the_same_and_nothing_is_recorded() {
    for device in Device::for_tests() {
        let [h, weight, targets] = inputs(&device);
        let want = h.linear_cross_entropy(&weight, &targets, Criterion::default(), None).unwrap();
        let loss = no_grad(|| h.linear_cross_entropy(&weight, &targets, Criterion::default(), None)).unwrap();
        expect_close(&format!("{device}"), &loss, &want);
        assert!(loss.backward().is_err(), "{device}");
    }
}

#[test]
fn chunks_are_aligned_and_within_what_can_be_bound() {
    for (rows, vocab) in [(1, 17), (2048, 8192), (16_384, 50_304), (300, 1_000_000), (340, 6000)] {
        let chunk = chunk_rows(rows, vocab, DType::F32, &Device::Cpu);
        assert!(chunk.is_multiple_of(64), "{rows} x {vocab}: {chunk}");
        assert!(chunk >= rows || chunk.is_multiple_of(WHOLE_TILES), "{rows} x {vocab}: {chunk}");
        assert!(chunk * vocab * 4 <= CPU_CHUNK_BYTES.max(MIN_ROWS * vocab * 4), "{rows} x {vocab}: {chunk}");
    }
}

#[test]
fn refuses_shapes_that_do_not_fit() {
    let [h, weight, targets] = inputs(&Device::Cpu);
    for (weight, targets) in [(&h, &targets), (&weight, &weight), (&weight, &targets.rows(0, 1))] {
        assert!(h.linear_cross_entropy(weight, targets, Criterion::default(), None).is_err(), "{weight:?} {targets:?}");
    }
}

/// As with its values at once, in more chunks than one.
#[test]
fn a_quantized_classifier_may_be_read_in_slices() {
    let key = crate::ops::random::Key::new(3);
    let values = |len: usize| (0..len as u32).map(|i| key.bits(i) as f32 / 2_147_483_648.0 - 1.0).collect::<Vec<_>>();
    for (device, dtype) in
        Device::for_tests().into_iter().flat_map(|d| [DType::F32, DType::F16].map(|t| (d.clone(), t)))
    {
        if dtype == DType::F16 && !device.has_f16() {
            continue;
        }
        let (rows, vocab, width) = (150, 200, 64);
        let weight = Tensor::from_f32(&values(vocab * width), [vocab, width], &Device::Cpu).unwrap();
        let weight = weight.to_dtype(DType::Nf4).unwrap().to_device(&device).unwrap();
        let targets: Vec<u32> = (0..rows as u32).map(|i| i * 7 % 200).collect();
        let targets = Tensor::from_u32(&targets, [rows], &device).unwrap();
        let whole = weight.to_dtype(dtype).unwrap();
        let loss = |weight: &Tensor, slice| {
            let h = Tensor::from_f32(&values(rows * width), [rows, width], &device).unwrap().requires_grad().unwrap();
            let operand = h.to_dtype(dtype).unwrap();
            let (weight, class_weights) = (weight.clone(), Vec::new());
            let weighing = Weighing::default();
            let classifier =
                Classifier { weight, bias: None, weighing, class_weights, chunk: 128, columns: vocab, slice };
            let loss = mean_loss(&classifier, &operand, &targets, None).unwrap();
            loss.backward().unwrap();
            (loss.to_f32().unwrap(), h.grad().unwrap().to_f32().unwrap())
        };
        let (want, got) = (loss(&whole, None), loss(&weight, Some(72)));
        let (atol, rtol) = if dtype == DType::F16 { (2e-5, 4e-3) } else { (1e-7, 1e-5) };
        crate::testing::assert_close(format!("{device} {dtype:?}: loss"), &got.0, &want.0, 0.0, rtol);
        crate::testing::assert_close(format!("{device} {dtype:?}: dh"), &got.1, &want.1, atol, rtol);
    }
}
