// The part of matrices on one side of a diagonal (src/ops/triangular.rs). One thread per element.
{{ interface }}

{{ for_each(1) }}
    let row = i / params.columns % params.rows;
    let column = i % params.columns;
    let right_of_diagonal = i32(column) - i32(row) - i32(params.diagonal);
    result[i] = select({{ T }}(0.0), x[i], right_of_diagonal {{ ">=" if upper else "<=" }} 0);
}
