//! Ops that only move elements: exact, but for gradients of what is repeated, which are sums.

use super::{Case, Values};
use crate::ops::inputs::AROUND_ZERO;
use crate::{DType, Result, Tensor};

pub(super) fn all(cases: &mut Vec<Case>) {
    permute(cases);
    slices(cases);
    expand(cases);
    pad(cases);
    cat(cases);
    triangular(cases);
    gather(cases);
}

/// In f32, and as f16 too.
fn push(cases: &mut Vec<Case>, name: &str, shapes: &[&[usize]], apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static) {
    let inputs: Vec<_> = shapes.iter().map(|shape| (shape.to_vec(), AROUND_ZERO)).collect();
    let apply = std::rc::Rc::new(apply);
    let half = apply.clone();
    let through_f16 = move |x: &[Tensor]| {
        let x = x.iter().map(|x| x.to_dtype(DType::F16)).collect::<Result<Vec<_>>>()?;
        half(&x)?.to_dtype(DType::F32)
    };
    cases.push(Case::new(name, inputs.clone(), move |x| apply(x)).tolerance(0.0, 0.0));
    // Drivers may round to either neighbour. Rounding makes steps.
    let case = Case::new(format!("{name}/f16"), inputs, through_f16).tolerance(6e-8, 1e-3);
    cases.push(Case { f16: true, ..case.not_smooth() });
}

fn permute(cases: &mut Vec<Case>) {
    let permutations: [(&[usize], &[usize]); 13] = [
        (&[], &[]),
        (&[1], &[0]),
        (&[17], &[0]),
        (&[17, 65], &[1, 0]),
        (&[64, 32], &[1, 0]),
        (&[3, 17, 129], &[2, 0, 1]),
        (&[3, 17, 129], &[0, 2, 1]),
        (&[2, 5, 3, 8], &[0, 2, 1, 3]),
        (&[2, 5, 3, 7], &[0, 2, 1, 3]),
        (&[2, 1, 5, 3, 4], &[4, 1, 3, 0, 2]),
        (&[2, 3, 5, 3, 4], &[3, 1, 2, 0, 4]),
        (&[2, 3, 2, 3, 2, 3], &[5, 3, 1, 4, 2, 0]),
        (&[2, 0, 3], &[1, 2, 0]),
    ];
    for (shape, dims) in permutations {
        push(cases, &format!("permute/{shape:?}/{dims:?}"), &[shape], move |x| x[0].permute(dims));
    }
    // The permutations on both sides make value and gradient depend on the shapes of the view.
    let apply = |x: &[Tensor]| x[0].permute(&[1, 0])?.reshape([13, 15])?.permute(&[1, 0]);
    push(cases, "reshape/[3, 65]", &[&[3, 65]], apply);
}

fn slices(cases: &mut Vec<Case>) {
    // Of vectors of four and of other lengths; all, none, the last; by steps; outermost, in the middle, innermost.
    let slices: [(&[usize], usize, usize, usize, usize); 13] = [
        (&[1], 0, 0, 1, 1),
        (&[17], 0, 3, 14, 1),
        (&[17], 0, 2, 17, 5),
        (&[65, 17], 0, 7, 30, 1),
        (&[65, 17], 1, 16, 17, 1),
        (&[65, 16], 1, 4, 12, 1),
        (&[65, 16], 1, 5, 12, 1),
        (&[3, 65, 8], 1, 1, 64, 3),
        (&[3, 65, 7], 1, 0, 65, 1),
        (&[3, 65], 1, 5, 5, 1),
        (&[0, 5], 1, 1, 3, 1),
        (&[2, 3, 2, 9, 2, 3], 3, 1, 8, 2),
        (&[4100, 3], 1, 0, 3, 2),
    ];
    for (shape, dim, start, end, step) in slices {
        let name = format!("{shape:?}/{dim}/{start}..{end} by {step}");
        push(cases, &format!("slice/{name}"), &[shape], move |x| x[0].slice(dim, start..end, step));
        if step == 1 {
            push(cases, &format!("narrow/{name}"), &[shape], move |x| x[0].narrow(dim, start, end - start));
        }
    }
    // Every part has a gradient of its own, which is added to the same one.
    for (shape, size, dim) in [(&[7, 5][..], 3, 0), (&[3, 12], 4, 1), (&[3, 7, 2], 2, 1)] {
        push(cases, &format!("split/{shape:?}/{size}/{dim}"), &[shape], move |x| {
            let parts = x[0].split(size, dim)?;
            let backwards: Vec<&Tensor> = parts.iter().rev().collect();
            Tensor::cat(&backwards, dim)
        });
    }
    // Two of a step that overlap.
    push(cases, "slice/twice", &[&[9, 8]], |x| Tensor::cat(&[&x[0].slice(0, 1..9, 2)?, &x[0].narrow(0, 2, 5)?], 0));
    let flips: [(&[usize], &[usize]); 8] = [
        (&[], &[]),
        (&[1], &[0]),
        (&[17], &[0]),
        (&[65, 8], &[0]),
        (&[65, 8], &[1]),
        (&[3, 65, 7], &[0, 2]),
        (&[2, 3, 2, 3, 2, 3], &[5, 1, 2]),
        (&[3, 0], &[0, 1]),
    ];
    for (shape, dims) in flips {
        push(cases, &format!("flip/{shape:?}/{dims:?}"), &[shape], move |x| x[0].flip(dims));
    }
}

fn expand(cases: &mut Vec<Case>) {
    let expansions: [(&[usize], &[usize]); 9] = [
        (&[], &[17]),
        (&[1], &[1]),
        (&[65], &[3, 65]),
        (&[64], &[3, 64]),
        (&[65, 1], &[65, 17]),
        (&[3, 1, 4], &[3, 17, 4]),
        (&[1, 3, 1], &[2, 2, 3, 5]),
        (&[2, 1, 2, 1, 2, 1], &[2, 3, 2, 3, 2, 3]),
        (&[1, 3], &[0, 3]),
    ];
    for (from, to) in expansions {
        let inputs = vec![(from.to_vec(), AROUND_ZERO)];
        let case = Case::new(format!("expand/{from:?}{to:?}"), inputs.clone(), move |x| x[0].expand(to));
        // Sums of up to 27 gradients below 1.
        cases.push(case.tolerance(5e-6, 2e-6));
        let half = move |x: &[Tensor]| x[0].to_dtype(DType::F16)?.expand(to)?.to_dtype(DType::F32);
        let case = Case::new(format!("expand/f16/{from:?}{to:?}"), inputs, half).tolerance(2e-3, 2e-3);
        cases.push(Case { f16: true, ..case.not_smooth() });
    }
}

fn pad(cases: &mut Vec<Case>) {
    type Border = &'static [(usize, usize)];
    let borders: [(&[usize], Border); 9] = [
        (&[], &[]),
        (&[1], &[(0, 0)]),
        (&[17], &[(3, 2)]),
        (&[16], &[(4, 8)]),
        (&[3, 65], &[(1, 0), (0, 2)]),
        (&[3, 64], &[(1, 2), (0, 0)]),
        (&[2, 5, 3], &[(0, 0), (1, 1), (2, 0)]),
        (&[2, 3, 2, 3, 2, 3], &[(1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1)]),
        (&[0, 3], &[(1, 1), (0, 0)]),
    ];
    for (shape, padding) in borders {
        push(cases, &format!("pad/{shape:?}{padding:?}"), &[shape], move |x| x[0].pad(padding, -1.5));
    }
}

fn cat(cases: &mut Vec<Case>) {
    let lists: [(&[&[usize]], usize); 7] = [
        (&[&[1]], 0),
        (&[&[3], &[17], &[0], &[5]], 0),
        (&[&[3, 65], &[2, 65]], 0),
        (&[&[65, 3], &[65, 17]], 1),
        (&[&[65, 8], &[65, 4], &[65, 12]], 1),
        (&[&[2, 3, 5], &[2, 0, 5], &[2, 4, 5]], 1),
        (&[&[0, 3], &[0, 4]], 1),
    ];
    for (shapes, dim) in lists {
        push(cases, &format!("cat/{shapes:?}/{dim}"), shapes, move |x| Tensor::cat(&x.iter().collect::<Vec<_>>(), dim));
    }
    for (shape, count, dim) in
        [(&[][..], 3, 0), (&[17], 2, 0), (&[17], 2, 1), (&[3, 4], 3, 1), (&[2, 3, 2, 3, 2], 2, 5)]
    {
        push(cases, &format!("stack/{count} of {shape:?}/{dim}"), &vec![shape; count], move |x| {
            Tensor::stack(&x.iter().collect::<Vec<_>>(), dim)
        });
    }
}

fn triangular(cases: &mut Vec<Case>) {
    for (shape, diagonal) in [(&[1, 1][..], 0), (&[17, 65], 0), (&[65, 17], 3), (&[2, 3, 9, 8], -2), (&[3, 0], 1)] {
        push(cases, &format!("tril/{shape:?}/{diagonal}"), &[shape], move |x| x[0].tril(diagonal));
        push(cases, &format!("triu/{shape:?}/{diagonal}"), &[shape], move |x| x[0].triu(diagonal));
    }
    push(cases, "tril/all", &[&[3, 4]], |x| x[0].tril(i64::MAX));
    push(cases, "triu/all", &[&[3, 4]], |x| x[0].triu(i64::MIN));
}

fn gather(cases: &mut Vec<Case>) {
    // Tensor, dimension, index: few columns and many, one of each row, an index that is shorter, more than are sorted
    // together, nothing.
    let shapes: [(&[usize], usize, &[usize]); 9] = [
        (&[1], 0, &[1]),
        (&[17], 0, &[65]),
        (&[5], 0, &[2500]),
        (&[65, 17], 1, &[65, 1]),
        (&[65, 17], 0, &[3, 17]),
        (&[3, 7, 5], 1, &[2, 9, 4]),
        (&[3, 4], 1, &[3, 0]),
        (&[0, 4], 1, &[0, 3]),
        (&[2, 3, 2, 3, 2, 3], 3, &[2, 3, 2, 5, 2, 3]),
    ];
    for (shape, dim, index) in shapes {
        let below = Values::Ids(shape[dim] as u32);
        let name = format!("{shape:?}/{dim}/{index:?}");
        let inputs = vec![(shape.to_vec(), AROUND_ZERO), (index.to_vec(), below)];
        let case = Case::new(format!("gather/{name}"), inputs.clone(), move |x| x[0].gather(dim, &x[1]));
        // Sums of up to 500 gradients below 1.
        cases.push(case.tolerance(2e-5, 2e-6));
        let inputs = [inputs, vec![(index.to_vec(), AROUND_ZERO)]].concat();
        let apply = move |x: &[Tensor]| x[0].scatter_add(dim, &x[1], &x[2]);
        cases.push(Case::new(format!("scatter_add/{name}"), inputs, apply).tolerance(5e-5, 2e-6));
    }
    let shapes: [(&[usize], usize, usize); 6] =
        [(&[1], 0, 1), (&[17, 65], 0, 129), (&[65, 17], 1, 5), (&[3, 7, 8], 1, 9), (&[3, 5], 1, 0), (&[2, 3, 2], 2, 3)];
    for (shape, dim, n) in shapes {
        let inputs = vec![(shape.to_vec(), AROUND_ZERO), (vec![n], Values::Ids(shape[dim] as u32))];
        let case =
            Case::new(format!("index_select/{shape:?}/{dim}/{n}"), inputs, move |x| x[0].index_select(dim, &x[1]));
        cases.push(case.tolerance(2e-5, 2e-6));
    }
}
