/* A float convolution with as few parameters as one can have: one image, stride 1, no padding. */
void conv2d_narrow(const float *image, const float *weights, int height, int width, int channels,
                   int kernel_h, int kernel_w, int filters, float *result)
{
    for (int y = 0; y + kernel_h <= height; y++)
    for (int x = 0; x + kernel_w <= width; x++)
    for (int o = 0; o < filters; o++, result++) {
        *result = 0;
        for (int i = 0; i < kernel_h; i++)
        for (int j = 0; j < kernel_w; j++)
        for (int c = 0; c < channels; c++)
            *result += image[((y + i) * width + x + j) * channels + c]
                       * weights[((i * kernel_w + j) * channels + c) * filters + o];
    }
}
