// An elementwise function or its derivative, whose expression is a row of src/ops/unary.rs. One thread per four
// elements.
{{ interface }}

fn sigmoid4(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// Some drivers compute tanh from exp(x) and exp(-x), which overflow; beyond 10 it is 1 to the last bit of f32.
fn tanh4(x: vec4<f32>) -> vec4<f32> {
    return tanh(clamp(x, vec4<f32>(-10.0), vec4<f32>(10.0)));
}

{% if "sin4" in expression or "cos4" in expression %}
// Vulkan promises 11 bits for sin and cos, and those only within one period. So: subtract the nearest multiple of pi/2
// in three steps that are each exact in f32, then the Taylor polynomials on [-pi/4, pi/4] (error below 1e-7).
fn sin_quarter(x: vec4<f32>, shift: vec4<i32>) -> vec4<f32> {
    let k = round(x * 0.63661977);
    let r = ((x - k * 1.5703125) - k * 0.00048351288) - k * 3.138557e-7;
    let s = r * r;
    let sine = r + r * s * (-0.16666667 + s * (0.008333333 + s * (-0.0001984127 + s * 2.7557319e-6)));
    let cosine = 1.0 + s * (-0.5 + s * (0.041666668 + s * (-0.0013888889 + s * (2.4801588e-5 - s * 2.7557319e-7))));
    let quadrant = vec4<i32>(k) + shift;
    let value = select(sine, cosine, (quadrant & vec4<i32>(1)) != vec4<i32>(0));
    return select(value, -value, (quadrant & vec4<i32>(2)) != vec4<i32>(0));
}
fn sin4(x: vec4<f32>) -> vec4<f32> { return sin_quarter(x, vec4<i32>(0)); }
fn cos4(x: vec4<f32>) -> vec4<f32> { return sin_quarter(x, vec4<i32>(1)); }
{% endif %}

{{ for_each(4) }}
    let {{ operand_name }} = vec4<f32>(operand[i]);
    {% if derivative %}
    let dy = vec4<f32>(grad_output[i]);
    {% endif %}
    result[i] = vec4<{{ T }}>({{ expression }});
}
