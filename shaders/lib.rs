//! The WGSL templates of the kernels, as text: `rustyflow_shaders::softmax` is `softmax.wgsl`.
//!
//! A crate of their own, so that they stand at the top of the repository and a package of the tensor library has them.
#![allow(non_upper_case_globals)]

macro_rules! templates {
    ($($name:ident)*) => {
        $(pub const $name: &str = include_str!(concat!(stringify!($name), ".wgsl"));)*
    };
}

templates! {
    accumulate
    attention_backward
    attention_blocks
    attention_common
    attention_coop_backward
    attention_coop_common
    attention_coop_forward
    attention_delta
    attention_forward
    attention_scales
    batch_norm
    binary
    cast
    cat
    common
    conv
    conv_direct
    conv_pixels
    conv_weight
    cross_entropy
    dequantize
    dropout
    ema
    embedding
    fill
    gather
    grad_norm
    gradient_scale
    int8_moments
    kv_cache
    layer_norm
    layerwise_norm
    linear_cross_entropy
    loss_scale
    masked_softmax
    matmul
    matmul_coop
    matmul_epilogue
    matmul_split_fp16
    matvec
    muon
    newton_schulz
    nll_loss
    optimizer
    pool
    quantized
    recurrent
    reduce
    rope
    sample
    softmax
    split_k_reduce
    strided
    swiglu
    triangular
    unary
    window
}
