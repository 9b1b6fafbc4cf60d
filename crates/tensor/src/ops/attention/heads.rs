//! The heads of attention.

/// Head counts and the attention window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; `n_head` is a multiple of it.
    pub n_kv_head: usize,
    /// Sliding window: the most keys that a query sees, its own included. `None`: all preceding keys.
    pub window: Option<usize>,
}

impl Heads {
    /// Multi-head attention without a window (Vaswani et al. 2017).
    pub fn multi_head(n_head: usize) -> Heads {
        Heads { n_head, n_kv_head: n_head, window: None }
    }

    /// Number of heads in a row of packed qkv: query, key and value heads.
    pub(crate) fn packed(self) -> Option<usize> {
        self.n_kv_head.checked_mul(2)?.checked_add(self.n_head)
    }
}
