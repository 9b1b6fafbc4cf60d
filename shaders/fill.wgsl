// Sets every element to one value. One thread per element.
{{ interface }}

{{ for_each(1) }}
    x[i] = params.value;
}
