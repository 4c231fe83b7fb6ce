/* Classify rows with the library that model.py writes; its head has the commands. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 5, COLUMNS = 16 };

static int stop(const smelt_error *error)
{
    fprintf(stderr, "error %d: %s\n", error->code, error->text);
    return EXIT_FAILURE;
}

int main(void)
{
    float x[ROWS * COLUMNS];
    smelt_error error;
    smelt_program *program;
    smelt_tensor input = {x, SMELT_F32, 2, {ROWS, COLUMNS}}, outputs[2];
    int status = EXIT_SUCCESS;

    for (int k = 0; k < ROWS * COLUMNS; k++)
        x[k] = (float)((k * 7) % 11) / 11;
    if (model_open("classify", NULL, &program, &error))
        return stop(&error);
    printf("%s\n", model_describe(program));

    /* the shapes of the results follow from those of the arguments; their memory is ours */
    if (model_shapes(program, &input, 1, outputs, 2, &error))
        return stop(&error);
    float *scores = malloc(sizeof *scores * (size_t)(outputs[0].shape[0] * outputs[0].shape[1]));
    int64_t *classes = malloc(sizeof *classes * (size_t)outputs[1].shape[0]);
    outputs[0].data = scores;
    outputs[1].data = classes;
    if (!scores || !classes || model_run(program, &input, 1, outputs, 2, &error))
        status = stop(&error);
    for (int k = 0; !status && k < ROWS; k++)
        printf("row %d: class %d, %.4f\n", k, (int)classes[k], scores[10 * k + classes[k]]);
    free(scores);
    free(classes);
    model_close(program);
    return status;
}
