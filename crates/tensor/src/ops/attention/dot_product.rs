//! Scaled dot-product attention of separate query, key and value tensors, with any mask: self-attention or
//! cross-attention (Tq != Tk). Shapes: q (..., Tq, D), k (..., Tk, D), v (..., Tk, E) -> (..., Tq, E).
//!
//! ```text
//! S = scale q k^T [+ mask]    P = softmax(S)    y = dropout(P) v
//! ```
//! Causal self-attention without a mask runs the fused kernel of [`Attention`], whose memory is linear in T. All other
//! cases are two batched GEMMs with a softmax between them, and store P.

use super::masked_softmax::masked_softmax;
use super::*;

/// The mask of the scores, broadcast to (..., Tq, Tk).
#[derive(Debug, Clone, Copy)]
pub enum AttentionMask<'a> {
    /// f32, added to the scores: -infinity masks a key, other values are a bias, which may be trained.
    Additive(&'a Tensor),
    /// f32, as comparisons return it: a query sees the keys where it is not 0. Like PyTorch's boolean mask.
    Keep(&'a Tensor),
}

/// Optional arguments of PyTorch's `scaled_dot_product_attention`.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionOptions<'a> {
    /// The mask. A query without visible keys gets zeros.
    pub mask: Option<AttentionMask<'a>>,
    /// Query i sees only keys 0 to i, in addition to the mask.
    pub causal: bool,
    /// Factor of the scores; default 1 / sqrt(D).
    pub scale: Option<f32>,
    /// Dropout probability of the elements of P, and the random key.
    pub dropout: Option<(f32, Key)>,
}

/// The sizes of q, k and v: the product of the leading dimensions, Tq, Tk, D, E.
fn sizes(shapes: [&Shape; 3]) -> Option<[usize; 5]> {
    let [[of_q @ .., queries, depth], [of_k @ .., keys, depth_k], [of_v @ .., values, width]] = shapes.map(|x| &x[..])
    else {
        return None;
    };
    let fit = of_q == of_k && of_q == of_v && depth == depth_k && keys == values;
    fit.then(|| [of_q.iter().product(), *queries, *keys, *depth, *width])
}

impl Tensor {
    /// Attention of these queries (..., Tq, D) to `keys` (..., Tk, D) and `values` (..., Tk, E) -> (..., Tq, E), all
    /// f32 with equal leading dimensions.
    ///
    /// # Errors
    /// If the shapes do not fit, a tensor is not f32, the mask is not broadcast to (..., Tq, Tk), or the probability of
    /// dropout is not in 0..1.
    pub fn scaled_dot_product_attention(
        &self,
        keys: &Tensor,
        values: &Tensor,
        options: AttentionOptions,
    ) -> Result<Tensor> {
        const OP: &str = "scaled_dot_product_attention";
        expect_f32(OP, &[self.spec(), keys.spec(), values.spec()])?;
        let AttentionOptions { mask, causal, scale, dropout } = options;
        let shapes = [self.shape(), keys.shape(), values.shape()];
        let Some([batch, n_queries, n_keys, depth, width]) = sizes(shapes) else {
            let got = shapes.map(|shape| shape.to_string()).join(", ");
            return Err(shape_error(OP, "queries (..., Tq, D), keys (..., Tk, D) and values (..., Tk, E)", got));
        };
        let to = self.shape().with_last_dim(width);
        let root = (depth as f32).sqrt();
        let by_itself = mask.is_none() && causal && n_queries == n_keys && depth == width;
        if by_itself && batch * n_queries > 0 && (1..=MAX_HEAD_SIZE).contains(&depth) {
            let queries = scale.map(|scale| self.scale(scale * root)).transpose()?;
            let rows = [queries.as_ref().unwrap_or(self), keys, values].map(|x| x.reshape([batch, n_keys, depth]));
            let [q, k, v] = rows;
            let packed = Tensor::cat(&[&q?, &k?, &v?], 2)?;
            return packed.causal_attention(Heads::multi_head(1), None, dropout)?.reshape(to);
        }
        let q = self.reshape([batch, n_queries, depth])?.scale(scale.unwrap_or(1.0 / root))?;
        let scores = q.matmul_transposed(&keys.reshape([batch, n_keys, depth])?, false, true)?;
        let scores = scores.reshape(self.shape().with_last_dim(n_keys))?;
        let mut shares = match (mask, causal) {
            (None, false) => scores.softmax()?,
            _ => masked_softmax(&scores, mask, causal)?,
        };
        if let Some((probability, key)) = dropout {
            shares = shares.dropout(probability, key)?;
        }
        let values = values.reshape([batch, n_keys, width])?;
        shares.reshape([batch, n_queries, n_keys])?.matmul(&values)?.reshape(to)
    }
}
