// For each head of x (B, T, heads, head_size) the power of two that brings its largest finite magnitude to at least
// 2^13 and less than 2^14: what attention as split-fp16 multiplies it by. A workgroup finds that of one head.
{{ interface }}

const GROUPS = {{ head_size // 4 }}u;
var<workgroup> largest: array<u32, 256>;

{{ entry(256) }}
    if (workgroup >= params.batch * params.heads) { return; }
    let batch = workgroup / params.heads;
    let head = workgroup % params.heads;
    var most = vec4<u32>();
    for (var i = thread; i < params.time * GROUPS; i += 256u) {
        let row = batch * params.time + i / GROUPS;
        let bits = bitcast<vec4<u32>>(abs(x[(row * params.heads + head) * GROUPS + i % GROUPS]));
        // Only of finite values: infinity must not scale all others to zero.
        most = max(most, select(vec4<u32>(), bits, bits < vec4<u32>(0x7f800000u)));
    }
    largest[thread] = max(max(most.x, most.y), max(most.z, most.w));
    for (var step = 128u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread < step) { largest[thread] = max(largest[thread], largest[thread + step]); }
    }
    if (thread == 0u) {
        // Biased exponents (+127): the scale must be one that f32 can undo.
        scales[params.first + workgroup] = bitcast<f32>((267u - clamp(largest[0] >> 23u, 27u, 254u)) << 23u);
    }
}
