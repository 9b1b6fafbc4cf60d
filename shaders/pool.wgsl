// Pooling of planes (src/ops/pool.rs): forward one thread per element of the result; backward one per element of x,
// which adds up what the windows that hold it give, in their order.
{{ interface }}

{% if pass != "max" and pass != "max_backward" %}
// The elements of window i of a dimension, without the padding: first and end.
fn window(i: u32, size: u32, count: u32, kernel: u32, stride: u32, padding: u32) -> vec2<u32> {
    {% if adaptive %}
    return vec2<u32>(i * size / count, ((i + 1u) * size + count - 1u) / count);
    {% else %}
    let first = i * stride;
    return vec2<u32>(max(first, padding) - padding, min(first + kernel - padding, size));
    {% endif %}
}
fn rows(i: u32) -> vec2<u32> {
    return window(i, params.from_h, params.to_h, params.kernel_h, params.stride_h, params.padding_h);
}
fn columns(i: u32) -> vec2<u32> {
    return window(i, params.from_w, params.to_w, params.kernel_w, params.stride_w, params.padding_w);
}
// What the sum of window (i, j) is multiplied by.
fn share(i: u32, j: u32) -> f32 {
    {% if with_padding %}
    // The last windows may reach beyond the padding.
    let height = min(params.kernel_h, params.from_h + 2u * params.padding_h - i * params.stride_h);
    let width = min(params.kernel_w, params.from_w + 2u * params.padding_w - j * params.stride_w);
    return 1.0 / f32(height * width);
    {% else %}
    let down = rows(i);
    let right = columns(j);
    return 1.0 / f32((down.y - down.x) * (right.y - right.x));
    {% endif %}
}
{% endif %}

{{ for_each(1) }}
    {% if pass == "max" or pass == "average" %}
    let column = i % params.to_w;
    let row = i / params.to_w % params.to_h;
    let plane = i / (params.to_w * params.to_h) * params.from_h * params.from_w;
    {% else %}
    let column = i % params.from_w;
    let row = i / params.from_w % params.from_h;
    let plane = i / (params.from_w * params.from_h) * params.to_h * params.to_w;
    {% endif %}
    {% if pass == "max" %}
    var found = false;
    var best = 0.0;
    var place = 0u;
    for (var k = 0u; k < params.kernel_h; k++) {
        // Above the image the difference wraps around.
        let y_at = row * params.stride_h + k * params.dilation_h - params.padding_h;
        for (var l = 0u; l < params.kernel_w && y_at < params.from_h; l++) {
            let x_at = column * params.stride_w + l * params.dilation_w - params.padding_w;
            if (x_at < params.from_w) {
                let value = x[plane + y_at * params.from_w + x_at];
                if (!found || value > best || value != value) {
                    found = true;
                    best = value;
                    place = y_at * params.from_w + x_at;
                }
            }
        }
    }
    y[i] = best;
    places[i] = place;
    {% elif pass == "average" %}
    let down = rows(row);
    let right = columns(column);
    var sum = 0.0;
    for (var y_at = down.x; y_at < down.y; y_at++) {
        for (var x_at = right.x; x_at < right.y; x_at++) {
            sum += x[plane + y_at * params.from_w + x_at];
        }
    }
    y[i] = sum * share(row, column);
    {% elif pass == "max_backward" %}
    // Output (a, b) has this pixel as element (k, l) of its window if a stride + k dilation = row + padding.
    let pixel = row * params.from_w + column;
    var sum = 0.0;
    for (var k = 0u; k < params.kernel_h; k++) {
        // Beyond the first window the difference wraps around.
        let a = row + params.padding_h - k * params.dilation_h;
        if (a % params.stride_h == 0u && a / params.stride_h < params.to_h) {
            for (var l = 0u; l < params.kernel_w; l++) {
                let b = column + params.padding_w - l * params.dilation_w;
                if (b % params.stride_w == 0u && b / params.stride_w < params.to_w) {
                    let at = plane + a / params.stride_h * params.to_w + b / params.stride_w;
                    if (places[at] == pixel) { sum += grad_output[at]; }
                }
            }
        }
    }
    result[i] = sum;
    {% else %}
    {% if adaptive %}
    let a_first = row * params.to_h / params.from_h;
    let a_end = ((row + 1u) * params.to_h + params.from_h - 1u) / params.from_h;
    let b_first = column * params.to_w / params.from_w;
    let b_end = ((column + 1u) * params.to_w + params.from_w - 1u) / params.from_w;
    {% else %}
    // Those windows whose first element is less than a kernel before this one.
    let down = row + params.padding_h;
    let right = column + params.padding_w;
    let a_first = (max(down + params.stride_h, params.kernel_h) - params.kernel_h) / params.stride_h;
    let a_end = min(down / params.stride_h + 1u, params.to_h);
    let b_first = (max(right + params.stride_w, params.kernel_w) - params.kernel_w) / params.stride_w;
    let b_end = min(right / params.stride_w + 1u, params.to_w);
    {% endif %}
    var sum = 0.0;
    for (var a = a_first; a < a_end; a++) {
        for (var b = b_first; b < b_end; b++) {
            sum += grad_output[plane + a * params.to_w + b] * share(a, b);
        }
    }
    result[i] = sum;
    {% endif %}
}
