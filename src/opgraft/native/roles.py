"""The standard names of a C function's parameters, and their aliases.

A parameter is bound by its name. The same letter means different things in
different places (`w` is a kernel as a pointer and a width as a number; `n`
counts columns in a matrix product and images in a convolution), so there is
one table for pointers and one for the numbers of each kind of function.
"""

POINTERS = {
    "input": "input inputs in x a lhs left src image images data activation activations",
    "kernel": "kernel kernels filter filters weight weights w b rhs right coefficients",
    "output": "output outputs out y c dst result results res product",
}

# A VJP has these beside; its `output` is read, and is what the forward gave.
VJP_POINTERS = {
    "upstream": "upstream dy dout dc dout_grad grad grad_out grad_output grad_y g gy gout dresult",
    "grad_input": "grad_input dx da dinput dinputs grad_a grad_x grad_lhs gx ga dlhs",
    "grad_kernel": "grad_kernel dw db dkernel dfilter dfilters dweight dweights grad_w grad_b "
    "grad_filter grad_weights grad_rhs gw gb drhs",
}

TEXTS = {"padding": "padding pad pad_mode padding_mode mode"}

MATMUL = {
    "m": "m rows batch batch_size a_rows n_rows num_rows",
    "k": "k in_size inner depth in_features input_size in_dim input_dim a_cols b_rows",
    "n": "n out_size cols columns out_features output_size out_dim output_dim units b_cols",
}

CONV2D = {
    "batch": "batch batch_size n num_images images",
    "in_h": "h height in_h in_height input_h input_height ih h_in",
    "in_w": "w width in_w in_width input_w input_width iw w_in",
    "in_ch": "in_ch in_channels channels c cin c_in ic input_ch input_channels",
    "filter_h": "filter_h filter_height kernel_h kernel_height kh fh k_h f_h",
    "filter_w": "filter_w filter_width kernel_w kernel_width kw fw k_w f_w",
    "out_ch": "out_ch out_channels filters num_filters cout c_out oc output_ch output_channels",
    "out_h": "out_h out_height output_h output_height oh h_out",
    "out_w": "out_w out_width output_w output_width ow w_out",
    "stride_h": "stride_h stride_y stride_height strides_h sh s_h",
    "stride_w": "stride_w stride_x stride_width strides_w sw s_w",
    "stride": "stride strides s",
    "dilation_h": "dilation_h dilation_y dilation_height dilations_h dh d_h",
    "dilation_w": "dilation_w dilation_x dilation_width dilations_w dw d_w",
    "dilation": "dilation dilations dilation_rate d",
    "groups": "groups group num_groups g",
    "pad_top": "pad_top pad_t padding_top top",
    "pad_bottom": "pad_bottom pad_b padding_bottom bottom",
    "pad_left": "pad_left pad_l padding_left left",
    "pad_right": "pad_right pad_r padding_right right",
    "pad_h": "pad_h pad_y padding_h ph",
    "pad_w": "pad_w pad_x padding_w pw",
    "pad": "pad padding p",
    "pad_value": "pad_value padding_value pad_val",
}

MATMUL_NEEDS = ("input", "kernel", "output", "m", "k", "n")
MATMUL_VJP_NEEDS = ("upstream", "m", "k", "n")
CONV2D_VJP_NEEDS = ("upstream", "in_h", "in_w", "in_ch", "filter_h", "filter_w", "out_ch")
CONV2D_NEEDS = (
    "input", "kernel", "output", "in_h", "in_w", "in_ch", "filter_h", "filter_w", "out_ch",
)  # fmt: skip


def find(table: dict[str, str], name: str) -> str | None:
    """The standard name of which `name` is an alias in `table`, or None."""
    folded = name.lower()
    for role, aliases in table.items():
        if folded == role or folded in aliases.split():
            return role
    return None


def describe(table: dict[str, str]) -> str:
    return "; ".join(f"{role} ({aliases})" for role, aliases in table.items())
