/*
 * examples.c - reads a line, cuts its text into what is given and what is asked for, and encodes
 * both apart, as llm.c does it. Main thread.
 */
#include "examples/gpt2/tokens/examples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/data/json.h"

struct gpt2_examples {
    FILE *file;
    char path[GPT2_PATH_MAX];
    gpt2_suite_t suite;
    gpt2_encoder_t *encoder;
    char *line; /* [room] of getline() */
    size_t room;
    size_t number; /* of the line */
    char *texts;   /* the strings of the line, [text_room] */
    size_t text_room;
    gpt2_example_t example;
};

/* The members of a line that count. */
typedef struct fields {
    char *context; /* or the whole text */
    char *endings[GPT2_CHOICES_MAX];
    size_t count;
    size_t label;
    int has_label;
} fields_t;

int gpt2_examples_open(const char *path, gpt2_suite_t suite, gpt2_encoder_t *encoder,
                       gpt2_examples_t **out, gpt2_error_t *error)
{
    gpt2_examples_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for %s", path);
    if (gpt2_file_open(path, &self->file, NULL, error) != 0) {
        free(self);
        return -1;
    }
    (void)snprintf(self->path, sizeof(self->path), "%s", path);
    self->suite = suite;
    self->encoder = encoder;
    *out = self;
    return 0;
}

void gpt2_examples_close(gpt2_examples_t *self)
{
    if (self == NULL) return;
    for (size_t i = 0; i < GPT2_CHOICES_MAX; i++)
        free(self->example.choices[i].tokens.list);
    (void)fclose(self->file);
    free(self->line);
    free(self->texts);
    free(self);
}

/* A string of the line; its text begins at *texts, which moves behind it. No string is longer than
 * what it was read from, so all fit into the line's length. */
static char *read_text(gpt2_json_t *json, char **texts)
{
    char *text = *texts;

    if (gpt2_json_string(json, text, json->bytes + 1) != 0) return NULL;
    *texts += strlen(text) + 1;
    return text;
}

static int read_endings(gpt2_json_t *json, char **texts, fields_t *fields)
{
    if (!gpt2_json_open(json, '[')) return -1;
    for (fields->count = 0; gpt2_json_next(json, '[', fields->count == 0); fields->count++) {
        if (fields->count == GPT2_CHOICES_MAX) return -1;
        fields->endings[fields->count] = read_text(json, texts);
        if (fields->endings[fields->count] == NULL) return -1;
    }
    return json->failed ? -1 : 0;
}

/* A number, which some copies have as a string. */
static int read_label(gpt2_json_t *json, fields_t *fields)
{
    gpt2_json_t start = *json;
    uint64_t label;
    char text[8];

    if (gpt2_json_string(&start, text, sizeof(text)) == 0) {
        *json = start;
        if (strlen(text) != 1 || text[0] < '0' || text[0] > '9') return -1;
        label = (uint64_t)(text[0] - '0');
    } else if (gpt2_json_number(json, &label) != 0) {
        return -1;
    }
    fields->label = (size_t)label;
    fields->has_label = 1;
    return 0;
}

static int read_fields(gpt2_json_t *json, gpt2_suite_t suite, char *texts, fields_t *fields)
{
    int first = 1;

    memset(fields, 0, sizeof(*fields));
    if (!gpt2_json_open(json, '{')) return -1;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        char key[16];
        int code = 0;

        if (gpt2_json_key(json, key, sizeof(key)) != 0) return -1;
        if (strcmp(key, suite == GPT2_LAMBADA ? "text" : "ctx") == 0) {
            fields->context = read_text(json, &texts);
            code = fields->context == NULL ? -1 : 0;
        } else if (suite == GPT2_HELLASWAG && strcmp(key, "endings") == 0) {
            code = read_endings(json, &texts, fields);
        } else if (suite == GPT2_HELLASWAG && strcmp(key, "label") == 0) {
            code = read_label(json, fields);
        } else {
            code = gpt2_json_skip(json);
        }
        if (code != 0) return -1;
    }
    return gpt2_json_end(json);
}

/* LAMBADA: cuts the last word off. */
static int cut_word(fields_t *fields)
{
    char *blank;
    size_t length;

    if (fields->context == NULL) return -1;
    for (length = strlen(fields->context);
         length > 0 && (unsigned char)fields->context[length - 1] <= ' '; length--)
        fields->context[length - 1] = '\0';
    blank = strrchr(fields->context, ' ');
    if (blank == NULL || blank == fields->context) return -1;
    *blank = '\0';
    fields->endings[0] = blank + 1;
    fields->count = 1;
    fields->has_label = 1;
    return 0;
}

static int encode_text(gpt2_encoder_t *encoder, const char *text, gpt2_tokens_t *tokens,
                       gpt2_error_t *error)
{
    size_t used;

    return gpt2_encode(encoder, text, strlen(text), 1, &used, tokens, error);
}

/* Context and ending are encoded apart; a blank stands before the ending. */
static int encode_choice(gpt2_examples_t *self, const fields_t *fields, const char *ending,
                         gpt2_choice_t *choice, gpt2_error_t *error)
{
    const size_t bytes = strlen(ending) + 2;
    char *text = malloc(bytes);
    int code;

    if (text == NULL) return gpt2_fail(error, "out of memory for an example");
    (void)snprintf(text, bytes, " %s", ending);
    choice->tokens.count = 0;
    code = encode_text(self->encoder, fields->context, &choice->tokens, error);
    choice->from = choice->tokens.count;
    if (code == 0) code = encode_text(self->encoder, text, &choice->tokens, error);
    free(text);
    return code;
}

/* The next line that is not empty; 0 at the end. */
static ssize_t read_line(gpt2_examples_t *self)
{
    ssize_t length;

    do {
        length = getline(&self->line, &self->room, self->file);
        self->number++;
    } while (length > 0 && strspn(self->line, " \t\r\n") == (size_t)length);
    return length < 0 ? 0 : length;
}

int gpt2_examples_next(gpt2_examples_t *self, const gpt2_example_t **out, gpt2_error_t *error)
{
    gpt2_json_t json = {.at = 0};
    fields_t fields;

    *out = NULL;
    errno = 0;
    json.bytes = (size_t)read_line(self);
    if (json.bytes == 0 && ferror(self->file))
        return gpt2_fail(error, "%s: cannot be read: %s", self->path, strerror(errno));
    if (json.bytes == 0) return 0;
    json.text = self->line;
    if (self->text_room < 2 * json.bytes + 16) {
        free(self->texts);
        self->text_room = 2 * (2 * json.bytes + 16);
        self->texts = malloc(self->text_room);
        if (self->texts == NULL) {
            self->text_room = 0;
            return gpt2_fail(error, "%s: out of memory for line %zu", self->path, self->number);
        }
    }
    if (read_fields(&json, self->suite, self->texts, &fields) != 0 ||
        (self->suite == GPT2_LAMBADA && cut_word(&fields) != 0) || fields.context == NULL ||
        fields.context[0] == '\0' || !fields.has_label || fields.label >= fields.count) {
        return gpt2_fail(error, "%s: line %zu is no example: expected %s", self->path, self->number,
                         self->suite == GPT2_LAMBADA
                             ? "an object with \"text\", two words at least"
                             : "an object with \"ctx\", \"endings\" and their \"label\"");
    }
    self->example.count = fields.count;
    self->example.label = fields.label;
    for (size_t i = 0; i < fields.count; i++) {
        if (encode_choice(self, &fields, fields.endings[i], &self->example.choices[i], error) != 0)
            return -1;
    }
    *out = &self->example;
    return 0;
}
