// An edit conflict: the changes of both sides, the clashes, and three ways to continue.

import { changes, reapplied } from "../logic/paths";
import { ChangeList } from "../parts/diff_view";
import { Dialog } from "../parts/dialog";
import type { Config, Json } from "../types";

interface Props {
  base: Config;
  mine: { [key: string]: Json };
  theirs: Config;
  onTheirs: () => void;
  onMerged: (document: { [key: string]: Json }) => void;
  onClose: () => void;
}

export function Conflict({ base, mine, theirs, onTheirs, onMerged, onClose }: Props) {
  const merged = reapplied(base.config, mine, theirs.config);
  return (
    <Dialog title={`Version ${theirs.version} was saved before yours`} onClose={onClose} wide>
      <p>You edited version {base.version}. Your changes are not saved yet, and nothing is lost. Choose how to continue.</p>
      <div class="columns">
        <section><h3>Changed since then ({base.version} → {theirs.version})</h3><ChangeList changes={changes(base.config, theirs.config)} empty="No changes." /></section>
        <section><h3>Your changes</h3><ChangeList changes={merged.applied} empty="No changes." /></section>
      </div>
      {merged.clashes.length > 0 ? (
        <div class="trouble">
          <p>Both changed the same paths. If you reapply your changes, these changes are replaced:</p>
          <ul>{merged.clashes.map(({ mine: own, theirs: other }) => <li key={own.path}><code>{other.path}</code>: theirs {JSON.stringify(other.after)}, yours {JSON.stringify(own.after)}</li>)}</ul>
        </div>
      ) : <p class="good-words"><span aria-hidden="true">●</span> The changes do not conflict.</p>}
      <div class="buttons">
        <button type="button" onClick={onClose}>Continue editing {base.version}</button>
        <button type="button" onClick={onTheirs}>Use theirs, discard mine</button>
        <button type="button" class="primary" onClick={() => onMerged(merged.document)}>Reapply mine on {theirs.version}</button>
      </div>
      <p class="faint">Reapplying puts your changes into the editor on top of version {theirs.version}; review and save them there.</p>
    </Dialog>
  );
}
