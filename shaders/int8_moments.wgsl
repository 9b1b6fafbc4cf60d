// Moments of 8 bits (src/optim/int8.rs). A block of 256 is that of 64 neighbouring threads, each with four; `part` is
// the first word of one moment's part of a record: 64 words of codes, then absmax. `table` is 0 for moments with both
// signs, 1 for means of squares.
fn number_of_code(table: u32, code: u32) -> f32 {
    return bitcast<f32>(tables[table * 256u + code]);
}

fn decoded(table: u32, codes: u32, absmax: u32) -> vec4<f32> {
    return bitcast<f32>(absmax) * vec4<f32>(
        number_of_code(table, codes & 255u), number_of_code(table, (codes >> 8u) & 255u),
        number_of_code(table, (codes >> 16u) & 255u), number_of_code(table, codes >> 24u));
}

fn nearest_code(table: u32, x: f32) -> u32 {
    let magnitude = min(abs(x), 1.0);
    let cell = max(bitcast<u32>(magnitude) >> 16u, {{ first_cell }}u) - {{ first_cell }}u;
    var code = (tables[512u + table * {{ cell_words }}u + cell / 4u] >> (8u * (cell % 4u))) & 255u;
    let middle = 0.5 * (number_of_code(table, code) + number_of_code(table, min(code + 1u, 255u)));
    if (magnitude > middle) { code++; }
    let mirrored = select(254u, 0u, table == 1u);
    return select(code, mirrored - min(code, mirrored), x < 0.0);
}

fn encoded(table: u32, x: vec4<f32>, absmax: f32) -> u32 {
    let scaled = x / select(absmax, 1.0, absmax == 0.0);
    return nearest_code(table, scaled.x) | (nearest_code(table, scaled.y) << 8u)
        | (nearest_code(table, scaled.z) << 16u) | (nearest_code(table, scaled.w) << 24u);
}

var<workgroup> largest_of_threads: array<f32, 256>;

// The largest magnitude of a block. The first barrier: the last user of the memory has read it.
fn largest_of_block(x: vec4<f32>, thread: u32) -> f32 {
    let magnitudes = abs(x);
    workgroupBarrier();
    largest_of_threads[thread] = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    for (var apart = 32u; apart > 0u; apart /= 2u) {
        workgroupBarrier();
        if (thread % 64u < apart) {
            largest_of_threads[thread] = max(largest_of_threads[thread], largest_of_threads[thread + apart]);
        }
    }
    workgroupBarrier();
    return largest_of_threads[thread & 192u];
}
