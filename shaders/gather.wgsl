// The numbers of rows that an index asks for (src/ops/gather.rs), the largest u32 where there is none. One thread per
// number.
{{ interface }}

{{ for_each(1) }}
    let row = index[i % params.len_index];
    let number = (i / params.block * params.rows + row) * params.inner + i % params.inner;
    numbers[i] = select(0xffffffffu, number, row < params.rows);
}
